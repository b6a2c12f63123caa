"""From settings to a running store: mirrors, socket, bus, metrics page."""

from __future__ import annotations

import asyncio
import socket
from functools import partial

from services.kvstore.metrics import StoreCollector
from services.kvstore.service import KvStoreService
from services.kvstore.settings import KvStoreSettings
from services.kvstore.store import Store
from services.kvstore.upkeep import Upkeep
from shared import logs, metrics
from shared.clock import loop_clock, wall_time_s
from shared.errors import UserError
from shared.health import HealthState
from shared.ids import new_kv_store_id
from shared.metrics_page import serve_page
from shared.natsbus import NatsBus
from shared.runtime import Runtime

BUS_AGAIN_S = 2.0


async def serve(chosen: KvStoreSettings, runtime: Runtime) -> None:
    """Run a store until the runtime says stop. Raises `UserError`."""
    me, host = new_kv_store_id(), socket.gethostname()
    store = Store(chosen, name=me)
    upkeep = Upkeep(store, read_s=chosen.deadline.read_s, clock=loop_clock(), wall=wall_time_s)
    registry = metrics.new_registry("kvstore")
    registry.register(StoreCollector(store))
    try:
        store.open()
    except OSError as error:
        raise UserError(
            f"cannot listen on {chosen.socket}: {error}", hint="choose another socket"
        ) from error
    service = KvStoreService(chosen, store, upkeep, me=me, host=host)
    try:
        page = partial(metrics.render, registry)
        async with serve_page(chosen.metrics_port, page, host=chosen.metrics_host):
            runtime.group.create_task(store.run(), name="kv store")
            runtime.group.create_task(upkeep.run(), name="kv store upkeep")
            if chosen.bus:
                runtime.group.create_task(
                    _join_bus(chosen, service, runtime), name="kv store on the bus"
                )
            runtime.health.move(HealthState.READY)
            logs.get("kvstore").info("store_ready", socket=chosen.socket, store=me)
            await runtime.stop.wait()
    finally:
        await store.close(drain_s=chosen.drain_s)


async def _join_bus(chosen: KvStoreSettings, service: KvStoreService, runtime: Runtime) -> None:
    """Be on the bus as soon as there is one: engines do not wait for it."""
    log = logs.get("kvstore")
    while True:
        try:
            bus = await NatsBus.connect(
                chosen.nats, group=runtime.group, name=chosen.name or "kvstore"
            )
            break
        except UserError as error:
            log.warning("no_bus", reason=str(error))
            await asyncio.sleep(BUS_AGAIN_S)
    try:
        await service.run(bus)
    finally:
        await bus.close()
