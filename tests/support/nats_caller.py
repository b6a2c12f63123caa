"""A caller of the NATS door on the memory bus: asks, cancels, and keeps what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from services.gateway.nats_api import KINDS
from shared.membus import MemoryBus
from shared.wire import Listening
from tests.support.gateway_world import GatewayWorld


class Reply:
    """One message of an answer."""

    def __init__(self, payload: bytes, reply: str, headers: Mapping[str, str] | None) -> None:
        self.payload = payload
        self.reply = reply
        self.headers = dict(headers or {})

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.payload)

    @property
    def is_last(self) -> bool:
        return "Hr-End" in self.headers


class Asker:
    """A caller with an inbox of its own for each request, as any NATS client may be."""

    def __init__(self, bus: MemoryBus, world: GatewayWorld) -> None:
        self._wire = bus.wire
        self._world = world

    @classmethod
    async def join(cls, world: GatewayWorld) -> Asker:
        return cls(await MemoryBus.join(world.hub, group=world.group, name="client"), world)

    async def ask(
        self,
        body: Mapping[str, Any] | bytes,
        *,
        verb: str = "chat",
        service: str = "m",
        **headers: str,
    ) -> Answer:
        inbox = self._wire.new_inbox()
        answer = Answer(inbox)
        answer.interest = await self._wire.listen(inbox, answer.take)
        payload = body if isinstance(body, bytes) else msgspec.json.encode(body)
        if self._world.gateways:
            self._world.asked += verb in KINDS
        self._wire.send(f"hr.api.{service}.{verb}", payload, reply=inbox, headers=_headers(headers))
        return answer

    async def cancel(self, name: str, **headers: str) -> Answer:
        return await self.ask(b"", verb="cancel", **(headers | {"hr_request_id": name}))

    async def discover(self, subject: str) -> Answer:
        inbox = self._wire.new_inbox()
        answer = Answer(inbox)
        answer.interest = await self._wire.listen(inbox, answer.take)
        self._wire.send(subject, b"", reply=inbox)
        return answer


def _headers(fields: Mapping[str, str]) -> dict[str, str]:
    return {
        "-".join(p.capitalize() for p in name.split("_")): value for name, value in fields.items()
    }


class Answer:
    """What comes back to one inbox."""

    interest: Listening

    def __init__(self, inbox: str) -> None:
        self.inbox = inbox
        self.replies: list[Reply] = []
        self._news = asyncio.Event()

    def take(self, _: str, payload: bytes, reply: str, headers: Mapping[str, str] | None) -> None:
        self.replies.append(Reply(payload, reply, headers))
        self._news.set()

    async def one(self) -> Reply:
        return (await self.several(1))[0]

    async def several(self, count: int) -> list[Reply]:
        async with asyncio.timeout(600):
            while len(self.replies) < count:
                self._news.clear()
                await self._news.wait()
        return self.replies[:count]

    async def whole(self) -> list[Reply]:
        async with asyncio.timeout(600):
            while not self.replies or not self.replies[-1].is_last:
                self._news.clear()
                await self._news.wait()
        return self.replies
