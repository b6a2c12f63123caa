"""Counts of the gateway for Prometheus. Per request: a few cheap observations; per token: nothing, batches are counted where they arrive.

No tenant, prompt or request id becomes a label: labels have few values by construction.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

import msgspec
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from typing_extensions import override

from services.gateway.gate_metrics import GateMetrics
from services.gateway.gates import Gates
from services.gateway.http_answers import HttpAnswers
from services.gateway.json_watch import JsonFault
from services.gateway.refusals import Setback
from services.gateway.running import Part, RunningCall
from shared.ids import ServiceName
from shared.messages import Ledger, Outcome, Priority
from shared.metric_views import Aliased
from shared.metrics import BusCollector, new_registry, render
from shared.typedbus import TypedBus

FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
IN, OUT = ("in",), ("out",)
"""Directions of tokens, as the gateway's clients see it."""
TOKEN_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)
WHOLE_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Reading(msgspec.Struct, frozen=True):
    """A figure that is read when somebody scrapes."""

    name: str
    text: str
    read: Callable[[], float]
    is_total: bool = False
    labels: dict[str, str] = {}


class GatewayMetrics:
    """Observes calls; see `CallObserver`."""

    def __init__(self) -> None:
        self.registry = new_registry("gateway")
        self._ended = self._total(
            "requests", "Calls that ended, by how.", ("door", "kind", "class", "outcome")
        )
        self._tokens = self._total("tokens", "Tokens of finished calls.", ("direction",))
        self._tokens.counts.update({IN: 0, OUT: 0})
        self._retries = self._total(
            "retries",
            "Prompts that went to another engine, by how: from their beginning, or to go on.",
            ("way",),
        )
        self._broken_json = self._total(
            "json_errors",
            "Choices of finished answers that had to be JSON and are not.",
            ("service", "cause"),
        )
        self._http = HttpAnswers()
        self.registry.register(Aliased(self._http, "gateway"))
        self._wait = self._spread("queue_wait", "Time at the gate.", FIRST_TOKEN_S)
        self._first = self._spread("ttft", "From first byte in to first token.", FIRST_TOKEN_S)
        self._each = self._spread("tpot", "Mean time of a token after the first.", TOKEN_S)
        self._whole = self._spread("e2e", "From first byte in to the end.", WHOLE_S)

    def watch(self, readings: Iterable[Reading]) -> None:
        """Have figures read at every scrape."""
        self.registry.register(_Readings(tuple(readings)))

    def watch_bus(self, bus: TypedBus) -> None:
        """Have the bus's counts read at every scrape."""
        self.registry.register(BusCollector(bus))

    def watch_gates(self, gates: Gates) -> None:
        """Have the queues' depths read at every scrape."""
        self.registry.register(GateMetrics(gates))

    def page(self) -> bytes:
        """Return all figures in Prometheus's text format."""
        return render(self.registry)

    def admitted(self, running: RunningCall, waited_s: float) -> None:
        """See `CallObserver`."""
        self._wait.observe(running.priority, waited_s)

    def first_delta(self, running: RunningCall, now: float) -> None:
        """See `CallObserver`."""
        self._first.observe(running.priority, now - running.caller.received_at)

    def retried(self, part: Part, setback: Setback) -> None:
        """See `CallObserver`."""
        self._retries.counts[(part.way or "anew",)] += 1

    def ended(self, running: RunningCall, outcome: Outcome, now: float) -> None:
        """See `CallObserver`."""
        priority, caller = running.priority, running.caller
        self._ended.counts[caller.door, running.call.kind, priority, outcome] += 1
        if outcome is not Outcome.FINISHED:
            return
        self._whole.observe(priority, now - caller.received_at)
        usages = [part.usage for part in running.parts if part.usage is not None]
        tokens_out = sum(usage.completion_tokens for usage in usages)
        self._tokens.counts[IN] += sum(usage.prompt_tokens for usage in usages)
        self._tokens.counts[OUT] += tokens_out
        each = tokens_out / running.choices
        if running.first_at is not None and each > 1:
            self._each.observe(priority, (now - running.first_at) / (each - 1))

    def json_broken(self, service: str, fault: JsonFault) -> None:
        """See `CallObserver`."""
        self._broken_json.counts[service, fault] += 1

    def entered(self, service: ServiceName, entry: Ledger) -> None:
        """Take an entry of the ledger."""
        self._http.observe(service, entry)

    def _total(self, name: str, text: str, labels: tuple[str, ...]) -> Total:
        total = Total(name, text, labels)
        self.registry.register(Aliased(total, "gateway"))
        return total

    def _spread(self, name: str, text: str, bounds: tuple[float, ...]) -> Spread:
        spread = Spread(name, text, bounds)
        self.registry.register(spread)
        return spread


class Spread(Collector):
    """A histogram by class of service. The library's own takes a lock, a search and several calls for each observation; this a tenth."""

    def __init__(self, name: str, text: str, bounds: tuple[float, ...]) -> None:
        self._name = f"headrace_gateway_{name}_seconds"
        self._text = text
        self._bounds = bounds
        self._labels = [*map(str, bounds), "+Inf"]
        self._counts = {priority: [0] * (len(bounds) + 1) for priority in Priority}
        self._sums = dict.fromkeys(Priority, 0.0)

    def observe(self, priority: Priority, seconds: float) -> None:
        """Count a duration."""
        self._counts[priority][bisect_left(self._bounds, seconds)] += 1
        self._sums[priority] += seconds

    @override
    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=["class"])
        for priority, counts in self._counts.items():
            buckets = list(zip(self._labels, accumulate(counts), strict=True))
            family.add_metric([priority], buckets, self._sums[priority])
        yield family


class Total(Collector):
    """A count by labels. The library's own takes a lock, a search and several calls for each increment."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...]) -> None:
        self._name = f"headrace_gateway_{name}"
        self._text = text
        self._labels = labels
        self.counts: Counter[tuple[str, ...]] = Counter()

    @override
    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, count in self.counts.items():
            family.add_metric(labels, count)
        yield family


class _Readings(Collector):
    """Figures that others keep."""

    def __init__(self, readings: tuple[Reading, ...]) -> None:
        self._readings = readings

    @override
    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for reading in self._readings:
            name = f"headrace_gateway_{reading.name}"
            family = families.get(name)
            if family is None:
                kind = CounterMetricFamily if reading.is_total else GaugeMetricFamily
                family = families[name] = kind(name, reading.text)
            sample = f"{name}_total" if reading.is_total else name
            family.add_sample(sample, reading.labels, reading.read())
        yield from families.values()
