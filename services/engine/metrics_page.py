"""What an engine shows to Prometheus: the process's and the bus's figures and its own, each labelled with service, version and engine."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial

from services.engine.service import EngineService
from services.engine.settings import EngineSettings
from shared import metrics
from shared.ids import EngineId
from shared.metric_views import Aliased, Labelled
from shared.metrics_page import serve_page
from shared.typedbus import TypedBus


def served_page(
    chosen: EngineSettings, bus: TypedBus, service: EngineService, engine: EngineId
) -> AbstractAsyncContextManager[None]:
    """Return what serves the page while it is entered; on no port where the settings name none."""
    registry = metrics.new_registry("engine")
    registry.register(metrics.BusCollector(bus))
    labels = {"service": chosen.service, "version": chosen.version, "engine": engine}
    for collector in (service.snapshot, service.pool, service.kv):
        registry.register(Aliased(Labelled(collector, lambda: labels), "engine"))
    page = partial(metrics.render, registry)
    return serve_page(chosen.metrics_port, page, host=chosen.metrics_host)
