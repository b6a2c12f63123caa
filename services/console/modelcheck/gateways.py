"""What gateways have captured: `headrace capture`, and the request that `debug-logits --request-id` looks at."""

from __future__ import annotations

import argparse
import asyncio

import msgspec

from services.console import output
from services.console.connection import on_bus
from services.console.fleet.instance import BusAddress
from services.console.plain import cleaned
from shared.errors import UserError
from shared.ids import GatewayId, ServiceName
from shared.messages import (
    HEARTBEAT_S,
    Captured,
    CapturedRequest,
    CaptureQuery,
    CaptureState,
    CaptureSwitch,
    GatewayHeartbeat,
)
from shared.natsbus import NatsBus
from shared.quantities import in_bytes, several

LISTEN_S = 2.5 * HEARTBEAT_S
ANSWER_S = 10.0
SWITCH_ON = "`headrace capture on SERVICE` keeps the prompts that come from then on, for a while"


class GatewayCapture(msgspec.Struct, frozen=True, kw_only=True):
    """What one gateway says of a service."""

    gateway: GatewayId
    left_s: float
    requests: int
    bytes: int
    passed_over: int


def capture(options: argparse.Namespace, address: BusAddress) -> int:
    """Switch the capture of a service, or tell how it stands; return the exit code. Raises `UserError`."""
    seconds = {"on": getattr(options, "seconds", None), "off": 0.0, "status": None}[options.action]

    async def switch(bus: NatsBus) -> list[GatewayCapture]:
        states: list[GatewayCapture] = []
        for gateway in await _gateways(bus):
            order = CaptureSwitch(
                gateway=gateway, service=ServiceName(options.service), seconds=seconds
            )
            state = await bus.request(order, timeout_s=ANSWER_S)
            assert isinstance(state, CaptureState)
            states.append(GatewayCapture(gateway=gateway, **msgspec.structs.asdict(state)))
        return states

    states = asyncio.run(on_bus(address, switch, name="headrace capture"))
    if options.output == "json":
        output.json_document(states)
    else:
        for state in states:
            output.line(_text(state, options.service))
    return 0


def _text(state: GatewayCapture, service: str) -> str:
    if not state.left_s:
        return f"{state.gateway}: prompts of {service} are not kept"
    kept = f"{several(state.requests, 'request')}, {in_bytes(state.bytes)}"
    large = f"; {several(state.passed_over, 'request')} too large" if state.passed_over else ""
    return f"{state.gateway}: prompts of {service} are kept for {state.left_s:.0f} s more ({kept}{large})"


async def captured(address: BusAddress, request: str) -> CapturedRequest:
    """Return a request that a gateway has kept. Raises `UserError`."""

    async def ask(bus: NatsBus) -> list[Captured]:
        answers = [
            await bus.request(CaptureQuery(gateway=gateway, request=request), timeout_s=ANSWER_S)
            for gateway in await _gateways(bus)
        ]
        return [answer for answer in answers if isinstance(answer, Captured)]

    answers = await on_bus(address, ask, name="headrace debug-logits")
    found = next((answer.found for answer in answers if answer.found is not None), None)
    if found is not None:
        return found
    if not any(answer.services for answer in answers):
        raise UserError(
            "no gateway keeps prompts: the capture is off, or its time is over", hint=SWITCH_ON
        )
    raise UserError(
        f"no gateway has kept a request {request}",
        hint="only requests of a captured service are kept, the newest 256, from when it was switched on",
    )


async def _gateways(bus: NatsBus) -> list[GatewayId]:
    """Return the gateways that are alive. Raises `UserError` where there is none."""
    heard: set[GatewayId] = set()
    await bus.subscribe(GatewayHeartbeat, lambda beat: heard.add(cleaned(beat.gateway)))
    await asyncio.sleep(LISTEN_S)
    if not heard:
        raise UserError("no gateway was heard", hint="`headrace status` shows what runs")
    return sorted(heard)
