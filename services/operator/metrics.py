"""What an operator counts, read by Prometheus. Labels are bounded: services up to `MAX_SERVICES`, kinds of actions and refusals."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from services.operator.service import Operator
from shared.messages import ServicePhase

PREFIX = "headrace_operator_"
MAX_SERVICES = 500


class OperatorCollector(Collector):
    """Makes the page when it is asked for."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    @override
    def collect(self) -> Iterator[Metric]:
        operator, counts = self._operator, self._operator.counts
        yield GaugeMetricFamily(f"{PREFIX}leads", "1 where it acts.", value=int(operator.leads))
        yield CounterMetricFamily(f"{PREFIX}passes", "Looks at the fleet.", value=counts.passes)
        yield CounterMetricFamily(f"{PREFIX}pass_seconds", "Their time.", value=counts.pass_s)
        yield CounterMetricFamily(
            f"{PREFIX}unanswered", "Orders and writes without an answer.", value=counts.failed
        )
        actions = CounterMetricFamily(
            f"{PREFIX}actions", "What was decided, by kind.", labels=("action",)
        )
        for name in ("start", "stop", "writestatus", "remove"):
            actions.add_metric((name,), counts.actions[name])
        yield actions
        refused = CounterMetricFamily(
            f"{PREFIX}refusals", "Orders that hosts did not take.", labels=("reason",)
        )
        for reason in ("epoch", "name", "room", "draining", "spec", "other"):
            refused.add_metric((reason,), counts.refused[reason])
        yield refused
        yield from self._services()

    def _services(self) -> Iterator[Metric]:
        view = self._operator.status
        entries = sorted(view.entries.items())[:MAX_SERVICES] if view is not None else []
        for name, text in (
            ("wanted", "Replicas that a service shall have."),
            ("ready", "Replicas of a service that serve."),
            ("updated", "Replicas of a service that serve, of its present revision."),
        ):
            family = GaugeMetricFamily(f"{PREFIX}replicas_{name}", text, labels=("service",))
            for service, entry in entries:
                family.add_metric((service,), getattr(entry.record, name))
            yield family
        phases = GaugeMetricFamily(
            f"{PREFIX}phase", "1 where a service is in that phase.", labels=("service", "phase")
        )
        for service, entry in entries:
            for phase in ServicePhase:
                phases.add_metric((service, phase), int(entry.record.phase is phase))
        yield phases
