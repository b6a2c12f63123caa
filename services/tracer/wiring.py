"""From settings to a running tracer: bus, collector, metrics page, service."""

from __future__ import annotations

import time
from functools import partial

from services.tracer.adapters.collectors import make_exporter
from services.tracer.policies import LivePolicies
from services.tracer.service import TracerService
from services.tracer.settings import TracerSettings
from shared import metrics
from shared.ids import new_tracer_id
from shared.messages import ServiceRecord
from shared.metrics_page import serve_page
from shared.natsbus import NatsBus
from shared.observability import Policies
from shared.records import Records
from shared.runtime import Runtime


async def serve(chosen: TracerSettings, policies: Policies, runtime: Runtime) -> None:
    """Run a tracer until the runtime says stop. Raises `UserError`."""
    exporter = make_exporter(chosen.otlp)
    try:
        bus = await NatsBus.connect(chosen.nats, group=runtime.group, name=chosen.name or "tracer")
        live = LivePolicies(policies)
        records = await Records.open(bus)
        await records.watch(
            ServiceRecord, lambda view: live.take(view.entries), group=runtime.group
        )
        service = TracerService(
            chosen,
            bus,
            exporter,
            policies=live,
            tracer=new_tracer_id(),
            cpu_clock=time.process_time,
        )
        registry = metrics.new_registry("tracer")
        registry.register(metrics.BusCollector(bus))
        registry.register(service.collector)
        registry.register(service.requests)
        page = partial(metrics.render, registry)
        try:
            async with serve_page(chosen.metrics_port, page, host=chosen.metrics_host):
                await service.run(runtime)
        finally:
            await bus.close()
    finally:
        if exporter is not None:
            await exporter.close()
