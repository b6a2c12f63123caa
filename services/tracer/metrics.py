"""What a tracer counts of itself, read by Prometheus. Each process counts what it did: several tracers are summed by the query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from typing_extensions import override

from services.tracer.outbox import Outbox
from services.tracer.restraint import Restraint
from services.tracer.sampling import Reason, Verdict

PREFIX = "headrace_tracer_"
EXPORT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class TracerCounts:
    """Counters since the start."""

    def __init__(self) -> None:
        self.ledgers = 0
        self.orphans = 0
        self.boxes = 0
        self.missed = 0
        self.kept: Counter[Reason] = Counter()
        self.sampled_out: Counter[Reason] = Counter()
        self.cut: Counter[Reason] = Counter()
        self.raw_bytes = 0
        self.wire_bytes = 0
        self.rejected_spans = 0
        self._export_buckets = [0] * (len(EXPORT_S) + 1)
        self._export_s = 0.0

    def decided(self, verdict: Verdict) -> None:
        """Count what became of a trace."""
        if verdict.keep:
            self.kept[verdict.reason] += 1
        elif verdict.is_cut:
            self.cut[verdict.reason] += 1
        else:
            self.sampled_out[verdict.reason] += 1

    def exported(self, seconds: float) -> None:
        """Count an attempt to hand a batch to the collector."""
        index = next((i for i, bound in enumerate(EXPORT_S) if seconds <= bound), len(EXPORT_S))
        self._export_buckets[index] += 1
        self._export_s += seconds

    def export_seconds(self) -> Metric:
        """Return the histogram of those attempts."""
        family = HistogramMetricFamily(
            PREFIX + "export_seconds", "Attempts to hand a batch to the collector."
        )
        passed, buckets = 0, []
        for bound, count in zip((*map(str, EXPORT_S), "+Inf"), self._export_buckets, strict=True):
            passed += count
            buckets.append((bound, float(passed)))
        family.add_metric((), buckets, self._export_s)
        return family


class TracerCollector(Collector):
    """Makes the page's part about the tracer itself."""

    def __init__(self, counts: TracerCounts, outbox: Outbox, restraint: Restraint) -> None:
        self._counts = counts
        self._outbox = outbox
        self._restraint = restraint

    @override
    def collect(self) -> Iterator[Metric]:
        counts, sent = self._counts, self._outbox.counts
        yield _total("ledgers", "Ledgers seen.", counts.ledgers)
        yield _total("orphans", "Requests whose gateway was gone.", counts.orphans)
        yield _total("black_boxes", "Black boxes of engines that died.", counts.boxes)
        yield _total("missed", "Times that messages may have been lost.", counts.missed)
        yield _by_reason("traces_kept", "Traces kept, by why.", counts.kept)
        yield _by_reason(
            "traces_sampled_out", "Traces not kept, by what they were.", counts.sampled_out
        )
        yield _by_reason("traces_cut", "Traces lost to the hard limit.", counts.cut)
        yield _total("traces_exported", "Traces that the collector took.", sent.exported)
        yield _total("traces_dropped", "Traces lost for want of room.", sent.dropped)
        yield _total("traces_rejected", "Traces that the collector refused.", sent.rejected)
        yield _total("spans_rejected", "Spans refused of traces taken.", counts.rejected_spans)
        yield _total("export_retries", "Exports that must be tried again.", sent.retries)
        yield _total("raw_bytes", "Bytes exported, before compression.", counts.raw_bytes)
        yield _total("wire_bytes", "Bytes exported, as sent (HTTP only).", counts.wire_bytes)
        yield counts.export_seconds()
        yield from self._gauges()

    def _gauges(self) -> Iterable[Metric]:
        yield _gauge("queue_traces", "Traces that wait for the collector.", len(self._outbox))
        yield _gauge("queue_bytes", "Their bytes, not compressed.", self._outbox.held_bytes)
        yield _gauge("level", "0 all, 1 fewer traces, 2 only failures.", self._restraint.level)
        yield _gauge(
            "cpu_share", "Of a core for each engine, in the last 10 s.", self._restraint.share
        )


def _total(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, text, value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value)


def _by_reason(name: str, text: str, values: Counter[Reason]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=["reason"])
    for reason in Reason:
        family.add_metric([reason.value], values[reason])
    return family
