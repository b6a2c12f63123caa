"""From settings to a running operator: bus, records, metrics page."""

from __future__ import annotations

from functools import partial

from services.operator.metrics import OperatorCollector
from services.operator.service import Operator
from services.operator.settings import OperatorSettings
from shared import metrics
from shared.clock import wall_time_s
from shared.ids import new_operator_id
from shared.metrics_page import serve_page
from shared.natsbus import NatsBus
from shared.records import Records
from shared.runtime import Runtime

MICROSECONDS = 1_000_000


async def serve(chosen: OperatorSettings, runtime: Runtime) -> None:
    """Run an operator until the runtime says stop. Raises `UserError`."""
    bus = await NatsBus.connect(chosen.nats, group=runtime.group, name=chosen.name or "operator")
    url = (
        f"http://{chosen.metrics_host}:{chosen.metrics_port}/metrics" if chosen.metrics_port else ""
    )
    operator = Operator(
        chosen,
        bus,
        await Records.open(bus),
        me=new_operator_id(),
        wall_us=lambda: int(wall_time_s() * MICROSECONDS),
        url=url,
    )
    registry = metrics.new_registry("operator")
    registry.register(metrics.BusCollector(bus))
    registry.register(OperatorCollector(operator))
    try:
        page = partial(metrics.render, registry)
        async with serve_page(chosen.metrics_port, page, host=chosen.metrics_host):
            await operator.run(runtime)
    finally:
        await bus.close()
