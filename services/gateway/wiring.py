"""Puts a gateway process together: two connections to the bus (tokens and engines on one, callers on the other), doors, service."""

from __future__ import annotations

import asyncio
import signal
from functools import partial

from services.gateway.doors import HttpDoor, NatsDoor
from services.gateway.http_api import HttpApi, Pages
from services.gateway.nats_announce import Announcement
from services.gateway.nats_api import NatsApi
from services.gateway.openai.openapi import document
from services.gateway.readings import http_readings
from services.gateway.service import Door, GatewayService
from services.gateway.settings import GatewaySettings
from shared.ids import GatewayId, new_gateway_id
from shared.keys import KeyFile
from shared.metrics import build_version
from shared.natsbus import NatsBus
from shared.runtime import Runtime
from shared.wire import Wire


async def serve(chosen: GatewaySettings, keys: KeyFile, process: Runtime) -> None:
    """Run a gateway until it is told to stop."""
    name = chosen.name or "gateway"
    bus = await NatsBus.connect(chosen.nats, group=process.group, name=name)
    callers = None
    try:
        gateway = new_gateway_id()
        service = GatewayService(chosen, bus, process, gateway=gateway, keys=keys)
        doors: list[Door] = [http_door(chosen, service)]
        if chosen.nats_api:
            callers = await NatsBus.connect(
                chosen.nats, group=process.group, name=f"{name} callers"
            )
            doors.append(nats_door(callers.wire, service, gateway=gateway))
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, partial(service.reload_keys, must=True))
        await service.run(doors)
    finally:
        for connection in (callers, bus):
            if connection is not None:
                await connection.close()


def http_door(chosen: GatewaySettings, service: GatewayService) -> HttpDoor:
    """Return the HTTP door of a service."""
    pages = Pages(
        ready=service.not_ready,
        metrics=service.metrics.page,
        openapi=document(version=build_version(), limits=chosen.limits),
    )
    api = HttpApi(service.calls, service.reception, service.lookout, pages, chosen.api)
    door = HttpDoor(chosen.http, api)
    service.metrics.watch(http_readings(door.server))
    return door


def nats_door(wire: Wire, service: GatewayService, *, gateway: GatewayId) -> NatsDoor:
    """Return the NATS door of a service; `wire` is a connection of its own."""
    api = NatsApi(wire, service.calls, service.reception, service.lookout)
    announcement = Announcement(
        wire,
        list(api.endpoints.values()),
        instance=gateway,
        version=build_version(),
        metadata={"gateway": gateway},
    )
    return NatsDoor(api, announcement)
