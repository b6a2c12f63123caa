"""What an engine counts, and how Prometheus reads it. The hot path adds to plain integers; names are made at a scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from enum import StrEnum
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from typing_extensions import override

from services.engine.step_counts import BOUNDS_S, StepCounts
from shared.messages import EngineHeartbeat, RefuseReason

PREFIX = "llm_engine_"


class End(StrEnum):
    """How a stream ended that the backend did not refuse."""

    COMPLETE = "complete"
    ERROR = "error"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    GATEWAY_GONE = "gateway_gone"
    DRAINED = "drained"


class Counts:
    """Counters since the start."""

    __slots__ = (
        "accepted",
        "batches",
        "deltas",
        "ends",
        "refused",
        "resends",
        "resends_gone",
        "stray_pieces",
        "unsent_batches",
    )

    def __init__(self) -> None:
        self.accepted = 0
        self.refused: Counter[RefuseReason] = Counter()
        self.ends: Counter[End] = Counter()
        self.deltas = 0
        self.batches = 0
        self.unsent_batches = 0
        """Token messages that the bus did not take: gateways ask for their deltas again."""
        self.resends = 0
        self.resends_gone = 0
        self.stray_pieces = 0
        """Pieces of streams that were already over."""


class Snapshot(Collector):
    """The engine's metrics from its counters and its heartbeat at the moment of a scrape."""

    def __init__(
        self,
        counts: Counts,
        *,
        heartbeat: Callable[[], EngineHeartbeat],
        tokens: Callable[[], int],
        ring_bytes: Callable[[], int],
        steps: StepCounts,
        mode_changes: Callable[[], int],
    ) -> None:
        self._counts = counts
        self._heartbeat = heartbeat
        self._tokens = tokens
        self._ring_bytes = ring_bytes
        self._steps = steps
        self._mode_changes = mode_changes

    @override
    def collect(self) -> Iterable[Metric]:
        counts = self._counts
        yield _counter("tokens", "Tokens generated.", self._tokens())
        yield _counter("deltas", "Deltas handed to the bus.", counts.deltas)
        yield _counter("batches", "Token messages handed to the bus.", counts.batches)
        yield _counter("unsent_batches", "Token messages the bus refused.", counts.unsent_batches)
        yield _counter("resends", "Resends asked for.", counts.resends)
        yield _counter("resends_gone", "Resends that came too late.", counts.resends_gone)
        yield _counter("stray_pieces", "Pieces of streams already over.", counts.stray_pieces)
        yield _counter("accepted", "Submits accepted.", counts.accepted)
        yield _labelled("refused", "Submits refused.", "reason", counts.refused)
        yield _labelled("streams_ended", "Streams by how they ended.", "end", counts.ends)
        yield from self._gauges()
        yield from self._of_steps()

    def _of_steps(self) -> Iterable[Metric]:
        steps = self._steps
        texts = {
            "prefill_tokens": "Prompt tokens computed for the first time.",
            "cached_tokens": "Prompt tokens that were there already.",
            "recomputed_tokens": "Tokens computed again after preemptions.",
            "preemptions": "Choices that lost their blocks.",
            "drafted_tokens": "Speculative tokens proposed.",
            "accepted_tokens": "Speculative tokens that held.",
        }
        for name, text in texts.items():
            yield _counter(name, text, getattr(steps, name))
        yield _counter(
            "mode_changes",
            "Changes of the attention backend or the graph mode of decode-only steps.",
            self._mode_changes(),
        )
        mode = GaugeMetricFamily(
            PREFIX + "step_mode", "1 for the mode of the last step.", labels=["mode"]
        )
        if steps.mode:
            mode.add_metric([steps.mode], 1)
        yield mode
        yield HistogramMetricFamily(
            PREFIX + "step_duration_seconds",
            "Time of a step.",
            buckets=_cumulative(steps.steps_by_time),
            sum_value=steps.busy_s,
        )

    def _gauges(self) -> Iterable[Metric]:
        beat = self._heartbeat()
        gauges = {
            "running": (beat.running, "Choices being generated."),
            "waiting": (beat.waiting, "Choices accepted and not begun."),
            "outstanding_tokens": (beat.outstanding_tokens, "Upper bound of token work left."),
            "step_age_seconds": (beat.step_age_s, "Time since the last step began; 0 when idle."),
            "step_bound_seconds": (beat.step_bound_s, "A step older than this hangs; 0: no bound."),
            "tokens_per_second": (beat.tokens_per_s, "Generated tokens per second, smoothed."),
            "ring_bytes": (self._ring_bytes(), "Bytes kept for resends."),
        }
        for name, (value, text) in gauges.items():
            yield GaugeMetricFamily(PREFIX + name, text, value)
        yield _counter("steps", "Steps of the backend.", beat.step)
        state = GaugeMetricFamily(PREFIX + "state", "1 for the state it is in.", labels=["state"])
        state.add_metric([beat.state], 1)
        yield state


def _cumulative(counts: list[int]) -> list[tuple[str, float]]:
    """Return Prometheus's buckets: each counts what is at most its bound."""
    bounds = [*(format(bound, ".6g") for bound in BOUNDS_S), "+Inf"]
    return [*zip(bounds, map(float, accumulate(counts)), strict=True)]


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + name, text, value)


def _labelled(
    name: str, text: str, label: str, values: Counter[RefuseReason] | Counter[End]
) -> CounterMetricFamily:
    family = CounterMetricFamily(PREFIX + name, text, labels=[label])
    for value, count in values.items():
        family.add_metric([str(value)], count)
    return family
