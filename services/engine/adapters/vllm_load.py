"""How busy vLLM's core is, from the statistics that it sends with each step.

The step counter comes from the core: a hung core behind a front that answers stops counting, and the age of its last step grows.
The core tells of nothing while idle, so counts are never taken for more than what is open here (after a mass abort they would stay up).
"""

from __future__ import annotations

import asyncio
from typing import Any

from typing_extensions import override
from vllm.v1.metrics.loggers import PrometheusStatLogger

from services.engine.ports import Limits, Load


class StepStats(PrometheusStatLogger):
    """Counts steps; in the place of vLLM's own Prometheus logger, whose histograms cost time with each token."""

    def __init__(self, vllm_config: Any, engine_indexes: list[int] | None = None) -> None:
        # Not the parent's: that one registers metrics.
        del vllm_config, engine_indexes
        self.steps = 0
        self.stepped_at = 0.0
        """Loop time of the last step's end, as this process learned of it."""
        self.running = 0
        self.kv_cache_usage = 0.0

    @override
    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Take what the core sent."""
        if scheduler_stats is not None:
            self.steps += 1
            self.stepped_at = asyncio.get_running_loop().time()
            self.running = scheduler_stats.num_running_reqs
            self.kv_cache_usage = scheduler_stats.kv_cache_usage

    @override
    def log_engine_initialized(self) -> None:
        """Nothing to tell."""

    @override
    def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None:
        """Nothing to tell."""

    @override
    def record_admission_rejection(self, reason: str) -> None:
        """Nothing to tell."""


def load_of(
    stats: StepStats, limits: Limits, *, open_choices: int, work_since: float, now: float
) -> Load:
    """Return the load. `work_since`: when there was last none, so that an idle time does not count as the age of a step."""
    if not open_choices:
        return Load(free_blocks=limits.total_blocks, step=stats.steps)
    running = min(stats.running, open_choices)
    return Load(
        running=running,
        waiting=open_choices - running,
        free_blocks=round((1.0 - stats.kv_cache_usage) * limits.total_blocks),
        step=stats.steps,
        step_age_s=now - max(stats.stepped_at, work_since),
    )
