"""How busy vLLM's core is, from the counts that it sends with each step.

The step counter comes from the core: a hung core behind a front that answers stops counting, and the age of its last step grows.
The core tells of nothing while idle, so counts are never taken for more than what is open here (after a mass abort they would stay up).

vLLM's front hands each step's counts to a logger if there is one. Given at construction, it also makes the front keep statistics of
every token, which doubles its time per token (`bench/vllm_front.py`). Hence it is put where vLLM itself replaces it when it scales.
"""

from __future__ import annotations

import asyncio
from typing import Any

from services.engine.adapters import vllm_worker
from services.engine.adapters.vllm_steps import StepGate
from services.engine.ports import Limits, Load
from services.engine.steps.step import Step


class StepStats:
    """Counts steps and passes their records on; for vLLM it is a logger."""

    def __init__(self, gate: StepGate) -> None:
        self._gate = gate
        self.steps = 0
        self.stepped_at = 0.0
        """Loop time of the last step's end, as this process learned of it."""
        self.running = 0
        self.kv_cache_usage = 0.0
        self.last = Step(0, 0.0, 0.0)
        """What the last step's record says of the pool."""
        gate.book.listeners.append(self._on_step)

    def attach(self, llm: Any) -> None:
        """Let an `AsyncLLM` without loggers tell of its steps."""
        llm.logger_manager = self
        llm._logger_ref[0] = self  # noqa: SLF001 - the way vLLM goes in `scale_elastic_ep`

    def record(
        self, engine_idx: int, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any
    ) -> None:
        """Take what the core sent, once the outputs that came with it have been handed out."""
        del engine_idx, iteration_stats, mm_cache_stats
        if scheduler_stats is not None:
            self.steps += 1
            self.stepped_at = asyncio.get_running_loop().time()
            self.running = scheduler_stats.num_running_reqs
            self.kv_cache_usage = scheduler_stats.kv_cache_usage
        self._gate.arrive(scheduler_stats.kv_connector_stats if scheduler_stats else None)

    def _on_step(self, step: Step) -> None:
        self.last = step


async def block_bytes_of(llm: Any) -> int:
    """Return the bytes of a block of the KV pool in one worker; 0 where the workers are not ours to ask."""
    if llm.vllm_config.parallel_config.worker_extension_cls != vllm_worker.NAME:
        return 0
    return max(await llm.collective_rpc(vllm_worker.ASK_BLOCK_BYTES), default=0)


def load_of(
    stats: StepStats, limits: Limits, *, open_choices: int, work_since: float, now: float
) -> Load:
    """Return the load. `work_since`: when there was last none, so that an idle time does not count as the age of a step."""
    if not open_choices:
        # All of the pool is one run then.
        return Load(
            free_blocks=limits.total_blocks,
            free_runs=1,
            largest_free_run=limits.total_blocks,
            promised_blocks=None if stats.last.promised_blocks is None else 0,
            reserved_blocks=stats.last.reserved_blocks,
            step=stats.steps,
        )
    last = stats.last
    running = min(stats.running, open_choices)
    return Load(
        running=running,
        waiting=open_choices - running,
        free_blocks=round((1.0 - stats.kv_cache_usage) * limits.total_blocks),
        free_runs=last.free_runs,
        largest_free_run=last.largest_free_run,
        promised_blocks=last.promised_blocks,
        reserved_blocks=last.reserved_blocks,
        blocked=min(last.blocked, open_choices - running),
        step=stats.steps,
        step_age_s=now - max(stats.stepped_at, work_since),
    )
