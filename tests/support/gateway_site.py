"""A gateway with its HTTP door on real sockets, a real engine service behind a memory bus, and clients that send what a test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.gateway_world import GatewayWorld, play_live
from tests.support.http_shell import Answer, Wire, until

CHAT = {
    "model": "m",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 5,
    "ignore_eos": True,
    "seed": 3,
}
LONG = CHAT | {"max_tokens": 4000}


class Site:
    """A running gateway and its clients."""

    def __init__(self, world: GatewayWorld) -> None:
        self.world = world
        self.wires: list[Wire] = []

    @property
    def port(self) -> int:
        return self.world.http[0].server.port

    async def wire(self) -> Wire:
        wire = await Wire.open(self.port)
        self.wires.append(wire)
        return wire

    async def get(self, path: str, *fields: str) -> Answer:
        wire = await self.wire()
        wire.get(path, *fields)
        return await wire.answer()

    async def post(self, body: Any, *fields: str, path: str = "/v1/chat/completions") -> Answer:
        wire = await self.wire()
        wire.post(path, body if isinstance(body, bytes) else json.dumps(body).encode(), *fields)
        return await wire.answer()

    async def begin(self, body: Any, *fields: str) -> Wire:
        wire = await self.wire()
        wire.post("/v1/chat/completions", json.dumps(body).encode(), *fields)
        return wire


def run(
    scenario: Callable[[Site], Awaitable[None]], *, engine: dict[str, Any] | None = None, **gateway
) -> None:
    """Run a scenario against a gateway and one engine; nothing may be left."""

    async def whole(world: GatewayWorld) -> None:
        http = {"port": 0, "sweep_s": 0.05} | gateway.pop("http", {})
        await world.add_gateway(with_http=True, http=http, **gateway)
        if engine is not None:
            await world.add_engine(**engine)
        await until(lambda: world.http[0].url)
        site = Site(world)
        try:
            async with asyncio.timeout(30):
                await scenario(site)
        finally:
            for wire in site.wires:
                wire.close()
        world.asked += sum(wire.posted for wire in site.wires)
        await world.assert_nothing_is_left()

    play_live(whole)


FAST = {"step_s": 0.001}
SLOW = {"step_s": 0.01}


def events(body: bytes) -> list[Any]:
    """Return the data of server-sent events; `[DONE]` as a string."""
    lines = [line for line in body.decode().split("\n\n") if line]
    assert all(line.startswith(("data: ", ":")) for line in lines)
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [text if text == "[DONE]" else json.loads(text) for text in data]
