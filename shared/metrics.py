"""Prometheus metrics of one process: a registry of its own, build information, the bus's counts, and the text page.

Every service names its metrics in its own `metrics.py`; none uses the library's global registry.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from typing_extensions import override

from shared.typedbus import TypedBus

CONTENT_TYPE = CONTENT_TYPE_LATEST


def build_version() -> str:
    """Return the version of the installed distribution, or `dev` in a bare checkout."""
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "dev"


def new_registry(service: str) -> CollectorRegistry:
    """Return a registry with build information and the process's CPU, memory and file figures."""
    registry = CollectorRegistry()
    build = Gauge(
        "headrace_build_info",
        "Version of this process; always 1.",
        ("service", "version"),
        registry=registry,
    )
    build.labels(service, build_version()).set(1)
    ProcessCollector(registry=registry)
    return registry


def render(registry: CollectorRegistry) -> bytes:
    """Return the text page of `CONTENT_TYPE`."""
    return generate_latest(registry)


class BusCollector(Collector):
    """Reads the bus's counts when the page is made, so that the bus pays nothing for them."""

    def __init__(self, bus: TypedBus) -> None:
        self._bus = bus

    @override
    def collect(self) -> Iterable[Metric]:
        counts = self._bus.counts
        up = GaugeMetricFamily(
            "headrace_bus_connected", "Whether the bus is connected (1) or away (0)."
        )
        up.add_metric((), float(self._bus.is_connected))
        yield up
        for name, help_text, value in (
            (
                "undecodable",
                "Messages that could not be decoded and were parked.",
                counts.undecodable,
            ),
            ("handler_errors", "Messages whose handler raised.", counts.handler_errors),
            (
                "losses",
                "Times that messages may have been lost: reconnects and slow reading.",
                counts.losses,
            ),
            ("refused", "Calls refused because too many were under way.", counts.refused),
            ("unsent", "Messages that were accepted and could not be sent.", counts.unsent),
        ):
            family = CounterMetricFamily(f"headrace_bus_{name}", help_text)
            family.add_metric((), value)
            yield family
