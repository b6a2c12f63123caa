"""What an engine shows to Prometheus: the process's and the bus's figures and its own, each labelled with service, version and engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from services.engine.service import EngineService
from services.engine.settings import EngineSettings
from shared import metrics
from shared.ids import EngineId
from shared.metric_views import Aliased, Labelled
from shared.typedbus import TypedBus


def page_of(
    chosen: EngineSettings, bus: TypedBus, service: EngineService, engine: EngineId
) -> Callable[[], bytes]:
    """Return what renders the page."""
    registry = metrics.new_registry("engine")
    registry.register(metrics.BusCollector(bus))
    labels = {"service": chosen.service, "version": chosen.version, "engine": engine}
    for collector in (service.snapshot, service.pool):
        registry.register(Aliased(Labelled(collector, lambda: labels), "engine"))
    return partial(metrics.render, registry)
