"""Requests for answers over HTTP by service and status, and how long they took: made of ledger entries, one of each request."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from shared.ids import ServiceName
from shared.latency_bounds import WHOLE_S, spelled
from shared.messages import Ledger

HANDLERS = {"chat": "/v1/chat/completions", "completion": "/v1/completions"}
"""Paths by the kind of a request; one that could not be read has none."""

_BOUNDS_US = tuple(bound * 1e6 for bound in WHOLE_S)


class HttpAnswers(Collector):
    """Counts entries of the door `http`. A service is one that has or had engines, or `unknown`: few by construction."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, int]] = Counter()
        self._buckets: dict[tuple[str, str], list[int]] = {}
        self._sums_us: Counter[tuple[str, str]] = Counter()

    def observe(self, service: ServiceName, entry: Ledger) -> None:
        """Count an entry."""
        if entry.door != "http":
            return
        key = service, entry.kind
        self._counts[service, entry.kind, entry.status] += 1
        buckets = self._buckets.get(key)
        if buckets is None:
            buckets = self._buckets[key] = [0] * (len(WHOLE_S) + 1)
        buckets[bisect_left(_BOUNDS_US, entry.wall_us)] += 1
        self._sums_us[key] += entry.wall_us

    @override
    def collect(self) -> Iterator[Metric]:
        answers = CounterMetricFamily(
            "headrace_gateway_http_answers",
            "Requests for answers over HTTP, by status.",
            labels=("service", "method", "handler", "status"),
        )
        for (service, kind, status), count in self._counts.items():
            answers.add_metric((service, "POST", HANDLERS.get(kind, ""), str(status)), count)
        yield answers
        took = HistogramMetricFamily(
            "headrace_gateway_http_answer_seconds",
            "From the first byte of such a request read to the last of its answer handed over.",
            labels=("service", "method", "handler"),
        )
        edges = [*map(spelled, WHOLE_S), "+Inf"]
        for key, counts in self._buckets.items():
            service, kind = key
            buckets = list(zip(edges, accumulate(counts), strict=True))
            labels = (service, "POST", HANDLERS.get(kind, ""))
            took.add_metric(labels, buckets, self._sums_us[key] / 1e6)
        yield took
