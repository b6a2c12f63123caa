"""vLLM's `OffloadingConnector`, which says what it hides: of a request its length and blocks, of a copy that it failed.

vLLM asserts that each copy succeeds. Here one that fails costs a recompute of its blocks (`kv_load_failure_policy`),
or a block that is not kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from services.engine.adapters.kv_mover import HostMover
from services.engine.adapters.kv_primary import Tiers
from services.engine.steps.step import KvMoves

NAME = "HeadraceConnector"
MODULE = __name__


@dataclass
class CopyNews(OffloadingWorkerMetadata):
    """What a worker tells the scheduler, with the copies that failed."""

    failed_jobs: set[int] = field(default_factory=set)

    @override
    def aggregate(self, other: Any) -> CopyNews:
        both = super().aggregate(other)
        assert isinstance(both, OffloadingWorkerMetadata)
        failed = self.failed_jobs | getattr(other, "failed_jobs", set())
        return CopyNews(both.completed_jobs, both.transfer_stats, failed)


class HeadraceConnector(OffloadingConnector):
    """Used by its name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._moves = KvMoves()
        self._stood = KvMoves()
        self._waiting: set[str] = set()
        """Requests whose blocks are on their way into L2: vLLM asks for them again in each step."""
        self._began: list[str] = []
        self._ended: list[str] = []

    # --- in a worker

    @property
    def _mover(self) -> HostMover | None:
        worker = self.connector_worker.worker if self.connector_worker is not None else None
        return worker if isinstance(worker, HostMover) else None

    @override
    def get_block_ids_with_load_errors(self) -> set[int]:
        mover = self._mover
        return set() if mover is None else mover.take_failed_blocks()

    @override
    def build_connector_worker_meta(self) -> OffloadingWorkerMetadata | None:
        told = super().build_connector_worker_meta()
        mover = self._mover
        if told is None or mover is None:
            return told
        failed = mover.take_failed_jobs(told.completed_jobs)
        return CopyNews(told.completed_jobs, told.transfer_stats, failed) if failed else told

    # --- in the scheduler

    @override
    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        ref, manager = request.request_id, self.scheduler.manager
        if ref in self._waiting and isinstance(manager, Tiers) and manager.is_loading(ref):
            # vLLM would look up each block again in each step: milliseconds for a long prompt, at the expense of all who decode.
            return None, False
        found: tuple[int | None, bool] = super().get_num_new_matched_tokens(
            request, num_computed_tokens
        )
        if found[0] is None and ref not in self._waiting:
            self._waiting.add(ref)
            self._began.append(ref)
        elif found[0] is not None and ref in self._waiting:
            self._waiting.discard(ref)
            if not found[0]:
                self._ended.append(ref)
        return found

    @override
    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        self._waiting.discard(request.request_id)
        kept: tuple[bool, dict[str, Any] | None] = super().request_finished_all_groups(
            request, block_ids
        )
        return kept

    def take_waits(self) -> tuple[list[str], list[str]]:
        """Return the requests that began to wait for blocks from below L2 since the last call, and those that do so no longer, in vain."""
        began, self._began = self._began, []
        ended, self._ended = self._ended, []
        return began, ended

    def take_moves(self) -> KvMoves | None:
        """Return what moved between the tiers since the last call; none where nothing did."""
        moves, self._moves = self._moves, KvMoves()
        manager = self.scheduler.manager
        if isinstance(manager, Tiers):
            manager.add_moves(moves)
        if moves == self._stood:
            return None
        self._stood = KvMoves(aside=moves.aside, disk_blocks=moves.disk_blocks)
        return moves

    @override
    def on_new_request(self, request: Request) -> None:
        manager = self.scheduler.manager
        if isinstance(manager, Tiers):
            manager.expect(request.request_id, request.num_prompt_tokens, request.block_hashes)
        super().on_new_request(request)

    @override
    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        told = connector_output.kv_connector_worker_meta
        if isinstance(told, OffloadingWorkerMetadata):
            self._moves.to_host += told.transfer_stats.store.bytes
            self._moves.from_host += told.transfer_stats.load.bytes
        if isinstance(told, CopyNews) and told.failed_jobs:
            self._on_failed(told.failed_jobs)
        super().update_connector_output(connector_output)

    def _on_failed(self, jobs: set[int]) -> None:
        scheduler = self.scheduler
        if isinstance(scheduler.manager, Tiers):
            for job in jobs:
                status = scheduler._jobs.get(job)  # noqa: SLF001 - vLLM tells the keys of a copy nowhere else
                if status is not None and status.is_store:
                    scheduler.manager.unwritten(status.keys)
