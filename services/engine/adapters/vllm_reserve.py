"""vLLM's schedulers with blocks promised before a request starts (`services.engine.reserve`). Runs in the core's process.

vLLM asks its waiting queue for the next request until that is empty; ours (`ReservedQueue`) is empty where nobody may start now. So those
who wait for blocks cost a step nothing and hold up nobody, and all that vLLM does with a request stays as it is.
A step's share for a long prompt is set by vLLM's own `long_prefill_token_threshold`, anew for each step.
"""

from __future__ import annotations

import time
from operator import attrgetter
from typing import Any

import msgspec
from vllm.v1.core.sched.request_queue import SchedulingPolicy

from services.engine.adapters.free_order import FreeOrder
from services.engine.adapters.vllm_blocks import BlockNeeds
from services.engine.adapters.vllm_queue import ReservedQueue
from services.engine.reserve import Reserve
from services.engine.reserve_plan import ReserveSettings, plan_of
from services.engine.steps.step import Step

OPTIONS = "headrace"
"""Name of our part of vLLM's `additional_config`."""
CHUNK_PART = 4
"""Part of a step's budget that prompts of long requests may have while others are there."""
_is_midway = attrgetter("is_prefill_chunk")


def options_of(settings: ReserveSettings) -> dict[str, Any]:
    """Return what the scheduler reads, for vLLM's `additional_config`."""
    return {OPTIONS: {"reserve": msgspec.to_builtins(settings)}}


class BlockReserve:
    """What both schedulers do with their queue; the class after this one is vLLM's. Does nothing where its options are not there."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lanes: ReservedQueue | None = None
        self._long_chunk = 0
        """Tokens; 0: as vLLM has it."""
        core: Any = self
        options = core.vllm_config.additional_config
        own = options.get(OPTIONS) if isinstance(options, dict) else None
        if own is None:
            return
        settings = msgspec.convert(own["reserve"], ReserveSettings)
        if settings.enabled:
            self._reserve_blocks(settings)

    def _reserve_blocks(self, settings: ReserveSettings) -> None:
        core: Any = self
        needs = BlockNeeds(core, open_answer_tokens=settings.open_answer_tokens)
        plan = plan_of(
            settings,
            total=needs.total,
            context_blocks=needs.blocks(core.max_model_len),
            context_tokens=core.max_model_len,
        )
        ranks = core.policy == SchedulingPolicy.PRIORITY
        self._lanes = ReservedQueue(Reserve(plan), needs, time.monotonic, ranks=ranks)
        self.waiting = self._lanes
        self._free_order = FreeOrder(core.kv_cache_manager.block_pool)
        if core.scheduler_config.long_prefill_token_threshold == 0:
            wanted = settings.long_chunk_tokens
            self._long_chunk = (
                core.max_num_scheduled_tokens // CHUNK_PART if wanted is None else wanted
            )

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Make a step."""
        if self._lanes is not None:
            self._free_order.tidy()
            self._lanes.look()
            if self._long_chunk:
                self._share_step(self._lanes)
        return super().schedule(*args, **kwargs)  # type: ignore[misc]

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        if self._lanes is not None:
            self._lanes.end(request)
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]

    def _share_step(self, lanes: ReservedQueue) -> None:
        """Bound what each prompt may have of this step, where somebody else is there to profit."""
        core: Any = self
        midway = sum(map(_is_midway, core.running))
        others = len(core.running) > midway or lanes.reserve.has_short
        share = self._long_chunk // max(1, midway)
        core.scheduler_config.long_prefill_token_threshold = (
            max(core.block_size, share) if others else 0
        )

    def _tell_reserve(self, step: Step) -> None:
        """Put what is promised and kept into the record of a step."""
        lanes = self._lanes
        if lanes is None:
            return
        uncommitted = lanes.uncommitted_now()
        step.promised_blocks = step.free_blocks - uncommitted
        step.reserved_blocks = lanes.reserve.kept(max(0, uncommitted))
        step.blocked = lanes.reserve.blocked
        if lanes.queued:
            step.queued, lanes.queued = lanes.queued, []
