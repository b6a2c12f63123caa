"""vLLM's schedulers with one addition: of each step they make one small record, which travels to the front with the step's statistics.

Runs in the core's process. `StepFacts` decides nothing: who starts when is `BlockReserve`'s to say, what is scheduled is vLLM's. There are
two, since vLLM has two (`SchedulerConfig.async_scheduling`). The record is a `Step` as bytes among the statistics of KV connectors, the one
place where vLLM carries what it does not know; those of a real connector stay beside it.

With pipeline parallelism a choice is in every second step or so by design; that is no pause, and which step made which of its tokens
is told as if it were in all of them.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import msgspec
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.metrics.cache_hit_source import CacheHitSource
from vllm.v1.metrics.stats import KV_FETCH_COMPLETED_WAITING, KV_FETCH_IN_PROGRESS

from services.engine.adapters.vllm_reserve import BlockReserve
from services.engine.adapters.vllm_warmth import EventTee, blocks_of
from services.engine.pool_scan import PoolScan
from services.engine.steps.step import Draft, Held, Prefill, Step
from services.engine.warmth.blocks import BlockNews, PromptBlocks

KEY = "headrace"
"""Name of the record among the statistics of KV connectors."""
KINDS = {"NONE": "eager", "FULL": "graph", "PIECEWISE": "piecewise"}
"""vLLM's names of the ways to run a step, and ours."""

_encode = msgspec.msgpack.Encoder().encode


class _Made:
    """A step that was made and has not ended."""

    __slots__ = ("facts", "made_at", "output")

    def __init__(self, output: Any, made_at: float, facts: dict[str, Any]) -> None:
        self.output = output
        self.made_at = made_at
        self.facts = facts


class StepFacts:
    """What both schedulers have in addition; the classes after this one are `BlockReserve` and vLLM's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._made: deque[_Made] = deque()
        self._ending: Step | None = None
        self._number = 0
        self._midway: dict[str, None] = {}
        """Requests whose prompt goes on in a next step."""
        self._computed: dict[str, int] = {}
        """How far those were computed that were preempted and are not there again."""
        self._preempted: list[str] = []
        self._loading: list[str] = []
        self._loaded: list[str] = []
        self._held: list[Held] = []
        self._lower: dict[str, tuple[int, int]] = {}
        """Tokens of a prompt that come from host memory, and from disk."""
        connector = self.connector  # type: ignore[attr-defined]
        self._take_moves = getattr(connector, "take_moves", None)
        self._take_waits = getattr(connector, "take_waits", None)
        self._drafts: list[Draft] = []
        self._prompts: list[PromptBlocks] = []
        """Of the step that is being made: prompts that it computes to their end."""
        self._tee = EventTee.before(self)
        # The first block is vLLM's own.
        self._scan = PoolScan(self.kv_cache_manager.block_pool.blocks[1:])  # type: ignore[attr-defined]

    # --- what vLLM calls

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Make a step, and note who is in it."""
        made_at = time.monotonic()
        output = super().schedule(*args, **kwargs)  # type: ignore[misc] # vLLM's
        if self._take_waits is not None:
            began, ended = self._take_waits()
            self._loading += began
            self._loaded += ended
        self._made.append(_Made(output, made_at, self._facts(output)))
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """End a step."""
        self._ending = self._ended(scheduler_output, time.monotonic())
        try:
            return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        finally:
            self._ending = None

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        """Put the record of the step that ends to its statistics."""
        stats = super().make_stats(*args, **kwargs)  # type: ignore[misc]
        step, self._ending = self._ending, None
        if stats is not None and step is not None:
            self._complete(step, stats.cudagraph_stats)
            stats.kv_connector_stats = {**(stats.kv_connector_stats or {}), KEY: _encode(step)}
        return stats

    def make_spec_decoding_stats(self, *args: Any, **kwargs: Any) -> Any:
        """Note the drafts of a request."""
        if kwargs["num_draft_tokens"]:
            self._drafts.append(
                Draft(
                    kwargs["request_id"],
                    kwargs["num_draft_tokens"],
                    kwargs["num_accepted_tokens"],
                )
            )
        return super().make_spec_decoding_stats(*args, **kwargs)  # type: ignore[misc]

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        ref = request.request_id
        self._computed[ref] = max(self._computed.get(ref, 0), request.num_computed_tokens)
        self._midway.pop(ref, None)
        self._preempted.append(ref)
        super()._preempt_request(request, *args, **kwargs)  # type: ignore[misc]

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        ref = request.request_id
        self._computed.pop(ref, None)
        self._midway.pop(ref, None)
        self._lower.pop(ref, None)
        self._held.append(Held(ref, self._blocks(ref)))
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]

    def _set_kv_fetch_stage(self, request: Any, stage: str | None) -> None:
        if stage == KV_FETCH_IN_PROGRESS:
            self._loading.append(request.request_id)
            self._lower[request.request_id] = self._from_lower(request)
        elif stage == KV_FETCH_COMPLETED_WAITING:
            self._loaded.append(request.request_id)
        super()._set_kv_fetch_stage(request, stage)  # type: ignore[misc]

    def _from_lower(self, request: Any) -> tuple[int, int]:
        """Return how many tokens of a load that begins come from host memory, and from disk."""
        if (told := request.prefill_stats) is None:
            return 0, 0
        sources = self.connector.get_external_cache_hit_sources(  # type: ignore[attr-defined]
            request, told.num_external_cached_tokens
        )
        return sources.get(CacheHitSource.HOST, 0), sources.get(CacheHitSource.DISK, 0)

    # --- a record

    def _facts(self, output: Any) -> dict[str, Any]:
        """Return what is known of a step when it is made."""
        scheduled = output.num_scheduled_tokens
        facts: dict[str, Any] = {"decodes": len(scheduled)}
        refs = [*self._midway, *(data.req_id for data in output.scheduled_new_reqs)]
        refs += output.scheduled_cached_reqs.resumed_req_ids
        if refs:
            prefills = [self._prefill(ref, scheduled[ref]) for ref in refs if ref in scheduled]
            facts["prefills"] = prefills
            if self._prompts:
                facts["blocks"], self._prompts = BlockNews(prompts=self._prompts), []
            facts["decodes"] -= len(prefills)
        if len(scheduled) < len(self.running):  # type: ignore[attr-defined]
            facts["unscheduled"] = self._unscheduled(scheduled)
        if self._preempted:
            facts["preempted"], self._preempted = self._preempted, []
        if self._loading:
            facts["loading"], self._loading = self._loading, []
        return facts

    def _prefill(self, ref: str, tokens: int) -> Prefill:
        """Return a chunk that was just scheduled."""
        request = self.requests[ref]  # type: ignore[attr-defined]
        end = request.num_computed_tokens
        start = end - tokens
        known = self._computed.get(ref, 0)
        is_last = not request.is_prefill_chunk
        is_first = ref not in self._midway and not request.num_preemptions
        if is_last:
            self._midway.pop(ref, None)
            self._computed.pop(ref, None)
            self._note_blocks(request)
        else:
            self._midway[ref] = None
        cached = start if is_first else 0
        host, disk = self._lower.pop(ref, (0, 0)) if cached else (0, 0)
        return Prefill(
            ref,
            max(0, min(end, request.num_prompt_tokens) - max(start, known)),
            max(0, min(end, known) - start),
            is_last,
            cached=cached,
            blocks=self._blocks(ref) if is_last else 0,
            # What did not come after all is computed, from the first block on that is missing.
            host=min(host, cached),
            disk=min(disk, cached - min(host, cached)),
        )

    def _note_blocks(self, request: Any) -> None:
        pool = self.kv_cache_manager.block_pool  # type: ignore[attr-defined]
        blocks = blocks_of(request, block_tokens=pool.hash_block_size)
        if blocks is not None:
            self._prompts.append(blocks)

    def _unscheduled(self, scheduled: dict[str, int]) -> list[str]:
        """Return who holds a place, has had a token, and is not in the step though it could be."""
        step = self.current_step  # type: ignore[attr-defined]
        return [
            request.request_id
            for request in self.running  # type: ignore[attr-defined]
            if request.request_id not in scheduled
            and not request.is_prefill_chunk
            and request.next_decode_eligible_step <= step
        ]

    def _blocks(self, ref: str) -> int:
        managers = self.kv_cache_manager.coordinator.single_type_managers  # type: ignore[attr-defined]
        return sum(len(manager.req_to_blocks.get(ref, ())) for manager in managers)

    def _ended(self, output: Any, ended_at: float) -> Step:
        """Return the record of a step; it lacks what shows only when its output has been read."""
        facts: dict[str, Any] = {}
        made_at = ended_at
        while self._made:
            made = self._made.popleft()
            if made.output is output:
                made_at, facts = made.made_at, made.facts
                break
        self._number += 1
        return Step(self._number, made_at, ended_at, **facts)

    def _complete(self, step: Step, graph: Any) -> None:
        pool = self.kv_cache_manager.block_pool  # type: ignore[attr-defined]
        step.free_blocks = pool.get_num_free_blocks()
        # One block of the pool is vLLM's own.
        step.total_blocks = pool.num_gpu_blocks - 1
        self._tell_reserve(step)  # type: ignore[attr-defined] # of `BlockReserve`
        self._scan.look()
        if (runs := self._scan.last) is not None:
            step.free_runs, step.largest_free_run = runs.runs, runs.largest
        if graph is not None:
            step.mode = KINDS.get(graph.runtime_mode.rpartition(".")[2], graph.runtime_mode)
        step.blocks = self._tee.put_into(step.blocks)
        if self._loaded:
            step.loaded, self._loaded = self._loaded, []
        if self._take_moves is not None:
            step.kv = self._take_moves()
        if self._held:
            step.held, self._held = self._held, []
        if self._drafts:
            step.drafts, self._drafts = self._drafts, []


class StepScheduler(StepFacts, BlockReserve, Scheduler):
    """For steps one after the other."""


class AsyncStepScheduler(StepFacts, BlockReserve, AsyncScheduler):
    """For steps that are made while the one before is under way."""


def scheduler_name(*, is_async: bool) -> str:
    """Return the qualified name by which vLLM finds the scheduler."""
    return f"{__name__}.{(AsyncStepScheduler if is_async else StepScheduler).__name__}"
