"""vLLM's book of the slots in host memory (L2), with slots that are kept aside: the store may still write into them.

Runs in the scheduler's process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from typing_extensions import override
from vllm.v1.kv_offload.base import OffloadKey, ReqContext
from vllm.v1.kv_offload.cpu.policies.base import ChunkStatus
from vllm.v1.kv_offload.tiering.manager import (
    CPUPrimaryTierOffloadingManager,
    TieringOffloadingManager,
)

from services.engine.steps.step import KvMoves


class HostTier(CPUPrimaryTierOffloadingManager):
    """`CPUPrimaryTierOffloadingManager` that never hands out a slot that is aside."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.aside: Collection[int] = frozenset()
        """Slots that must not be used; whoever loads into them keeps this, and gives them back when it is over."""

    def give_back(self, slots: Iterable[int]) -> None:
        """Take slots that were aside when they fell free, and are not any more."""
        self._free_list.extend(slots)

    @override
    def _free_chunk(self, chunk: ChunkStatus) -> None:
        if chunk.chunk_id not in self.aside:
            super()._free_chunk(chunk)

    @override
    def reset_cache(self) -> None:
        """Drop everything. vLLM would hand out all slots again from the first on."""
        super().reset_cache()
        self._num_allocated_chunks = self._num_chunks
        self._free_list.extend(
            slot for slot in reversed(range(self._num_chunks)) if slot not in self.aside
        )


class Tiers(TieringOffloadingManager):
    """`TieringOffloadingManager` that learns of copies into L2 that failed; vLLM takes each for a success."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unwritten: set[OffloadKey] = set()

    def expect(self, request: str, prompt_tokens: int, hashes: Sequence[bytes]) -> None:
        """Let the tiers below know more of the next request than vLLM tells them."""
        for tier in self.secondary_tiers:
            if (expect := getattr(tier, "expect", None)) is not None:
                expect(request, prompt_tokens, hashes)

    def is_loading(self, request: str) -> bool:
        """Return whether blocks are on their way into L2 for a request."""
        return any(
            getattr(tier, "is_loading", None) is not None and tier.is_loading(request)
            for tier in self.secondary_tiers
        )

    def add_moves(self, moves: KvMoves) -> None:
        """Add what the tiers below did since the last call, and how they stand."""
        for tier in self.secondary_tiers:
            if (add := getattr(tier, "add_moves", None)) is not None:
                add(moves)

    def unwritten(self, keys: Iterable[OffloadKey]) -> None:
        """Note that a copy of these into L2 has failed; `complete_store` of them follows."""
        self._unwritten.update(keys)

    @override
    def reset_cache(self) -> None:
        super().reset_cache()
        self._unwritten.clear()

    @override
    def complete_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        if self._unwritten and (lost := self._unwritten.intersection(keys)):
            self._unwritten -= lost
            success = False
        super().complete_store(keys, req_context, success)
