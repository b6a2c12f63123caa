"""Puts a gateway process together: two connections to the bus (tokens and engines on one, callers on the other), doors, service."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable
from functools import partial

from services.gateway.doors import HttpDoor, NatsDoor
from services.gateway.http_api import HttpApi, Pages
from services.gateway.nats_announce import Announcement
from services.gateway.nats_api import NatsApi
from services.gateway.openai.openapi import document
from services.gateway.readings import http_readings
from services.gateway.service import Door, GatewayService
from services.gateway.settings import GatewaySettings
from shared.boot import boot_id
from shared.history import History
from shared.ids import GatewayId, new_gateway_id
from shared.keys import KeyFile
from shared.messages import LedgerBatch
from shared.metrics import build_version
from shared.metrics_page import serve_page
from shared.natsbus import NatsBus
from shared.runtime import Runtime
from shared.wire import Wire

GC_ALLOCATIONS = 20_000
"""Net new containers between two looks of the collector at the young ones; Python's default is 700."""


class LatePage:
    """A page that is made in a thread when somebody first asks for it, and kept."""

    def __init__(self, make: Callable[[], bytes], group: asyncio.TaskGroup) -> None:
        self._make = make
        self._group = group
        self._page: bytes | None = None

    def __call__(self, deliver: Callable[[bytes], None]) -> None:
        """Call back with the page, now or later."""
        if self._page is not None:
            deliver(self._page)
        else:
            self._group.create_task(self._deliver(deliver))

    async def _deliver(self, deliver: Callable[[bytes], None]) -> None:
        page = await asyncio.to_thread(self._make)
        self._page = page
        deliver(page)


async def serve(chosen: GatewaySettings, keys: KeyFile, process: Runtime) -> None:
    """Run a gateway until it is told to stop."""
    name = chosen.name or "gateway"
    bus = await NatsBus.connect(chosen.nats, group=process.group, name=name)
    callers = None
    try:
        gateway = new_gateway_id()
        service = GatewayService(chosen, bus, process, gateway=gateway, boot=boot_id(), keys=keys)
        doors: list[Door] = [http_door(chosen, service)]
        if chosen.nats_api:
            callers = await NatsBus.connect(
                chosen.nats, group=process.group, name=f"{name} callers"
            )
            doors.append(nats_door(callers.wire, service, gateway=gateway))
        history = await History.open(bus)
        process.group.create_task(
            history.keep(LedgerBatch, replicas=chosen.ledger_replicas), name="ledger stream"
        )
        _calm_collector()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, partial(service.reload_keys, must=True))
        page, host = service.metrics.page, chosen.metrics_host
        async with serve_page(chosen.metrics_port, page, host=host):
            await service.run(doors)
    finally:
        for connection in (callers, bus):
            if connection is not None:
                await connection.close()


def _calm_collector() -> None:
    """Keep the garbage collector from walking over what lives as long as the process (a fifth of the CPU under load), and let it
    look less often.

    Calls hold few cycles and break them when they end, so there is little for it to find.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS, *gc.get_threshold()[1:])


def http_door(chosen: GatewaySettings, service: GatewayService) -> HttpDoor:
    """Return the HTTP door of a service."""
    pages = Pages(
        ready=service.not_ready,
        metrics=service.metrics.page,
        openapi=LatePage(
            partial(document, version=build_version(), limits=chosen.limits), service.group
        ),
    )
    api = HttpApi(
        service.calls,
        service.reception,
        service.lookout,
        pages,
        service.ledgers,
        settings=chosen.api,
    )
    door = HttpDoor(chosen.http, api, chosen.limits)
    service.metrics.watch(http_readings(door.server))
    return door


def nats_door(wire: Wire, service: GatewayService, *, gateway: GatewayId) -> NatsDoor:
    """Return the NATS door of a service; `wire` is a connection of its own."""
    api = NatsApi(wire, service.calls, service.reception, service.lookout, service.ledgers)
    announcement = Announcement(
        wire,
        list(api.endpoints.values()),
        instance=gateway,
        version=build_version(),
        metadata={"gateway": gateway},
    )
    return NatsDoor(api, announcement)
