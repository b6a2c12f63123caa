"""How many requests wait at the gates and how many choices are inside, by service and class, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from services.gateway.gates import Gates
from shared.messages import Priority


class GateMetrics(Collector):
    """Reads the gates when the page is made. A gate's service is one that has or had engines."""

    def __init__(self, gates: Gates) -> None:
        self._gates = gates

    @override
    def collect(self) -> Iterator[Metric]:
        queued = GaugeMetricFamily(
            "headrace_gateway_queued", "Requests at the gate.", labels=("service", "class")
        )
        inside = GaugeMetricFamily(
            "headrace_gateway_in_flight_choices", "Choices let in.", labels=("service",)
        )
        for service, gate in self._gates.by_service().items():
            inside.add_metric((service,), gate.in_flight)
            for priority in Priority:
                queued.add_metric((service, priority), gate.waiting_in(priority))
        yield from (queued, inside)
