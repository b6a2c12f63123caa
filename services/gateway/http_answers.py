"""Requests for answers over HTTP by service and status, and how long they took: made of ledger entries, one of each request."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from shared.ids import ServiceName
from shared.latency_bounds import WHOLE_S, spelled
from shared.messages import Ledger
from shared.spread import SETTLE, Spread

HANDLERS = {"chat": "/v1/chat/completions", "completion": "/v1/completions"}
"""Paths by the kind of a request; one that could not be read has none."""


class HttpAnswers(Collector):
    """Counts entries of the door `http`. A service is one that has or had engines, or `unknown`: few by construction."""

    def __init__(self) -> None:
        self._took: dict[tuple[str, str, int], Spread] = {}
        """By service, kind and status."""

    def observe(self, service: ServiceName, entry: Ledger) -> None:
        """Count an entry. On the path of each request."""
        if entry.door != "http":
            return
        spread = self._took.get((service, entry.kind, entry.status))
        if spread is None:
            spread = self._took[service, entry.kind, entry.status] = Spread(WHOLE_S)
        spread.put(entry.wall_us)
        if spread.waiting >= SETTLE:
            spread.settle()

    @override
    def collect(self) -> Iterator[Metric]:
        answers = CounterMetricFamily(
            "headrace_gateway_http_answers",
            "Requests for answers over HTTP, by status.",
            labels=("service", "method", "handler", "status"),
        )
        took = HistogramMetricFamily(
            "headrace_gateway_http_answer_seconds",
            "From the first byte of such a request read to the last of its answer handed over.",
            labels=("service", "method", "handler"),
        )
        whole: dict[tuple[str, str], Spread] = {}
        for (service, kind, status), spread in self._took.items():
            spread.settle()
            labels = (service, "POST", HANDLERS.get(kind, ""), str(status))
            answers.add_metric(labels, spread.count)
            whole.setdefault((service, kind), Spread(WHOLE_S)).add(spread)
        for (service, kind), spread in whole.items():
            buckets = list(zip(map(spelled, WHOLE_S), spread.at_most, strict=True))
            took.add_metric(
                (service, "POST", HANDLERS.get(kind, "")),
                [*buckets, ("+Inf", spread.count)],
                spread.sum_us / 1e6,
            )
        yield from (answers, took)
