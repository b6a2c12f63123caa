"""`headrace logs`: reads the requests of a service from the bus, those of the past and those that end from now on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from services.console.insight.desk import Desk
from services.console.insight.found import Found, founds
from services.console.insight.lines import Wanted
from shared.blame import LedgerWindow
from shared.blame.report import nearest_rank
from shared.ids import RequestId
from shared.messages import LedgerBatch

SLOW = 0.95
MAX_WAITING = 1_000
"""Messages that wait while the past is read; beyond it the oldest go first."""
MAX_PAST = 20_000
"""Requests remembered, so that none is written twice: once from the past and once as it came."""


async def slow_us(desk: Desk, service: str) -> int:
    """Return what 95 of 100 finished requests of the last hour stay below; 0 without any."""
    window = LedgerWindow()
    async for found in desk.requests(service=service):
        window.add(found.ledger)
    walls = sorted(one.wall_us for one in window.finished)
    return walls[nearest_rank(len(walls), SLOW)] if walls else 0


async def listing(desk: Desk, service: str, wanted: Wanted, *, tail: int) -> list[Found]:
    """Return the last `tail` of the wanted requests, in the order in which they ended. Raises `UserError` where the service is unknown."""
    found: list[Found] = []
    async for one in desk.requests(service=service, newest_first=True):
        if wanted.takes(one.ledger):
            found.append(one)
            if len(found) == tail:
                break
    if not found:
        await desk.check_service(service)
    return found[::-1]


class Follower:
    """What ends from now on; listens from `open` on, so that nothing falls between it and the past."""

    def __init__(self) -> None:
        self._waiting: deque[LedgerBatch] = deque()
        self._came = asyncio.Event()
        self._known: set[RequestId] = set()

    def hear(self, batch: LedgerBatch) -> None:
        """Take a message."""
        if len(self._waiting) == MAX_WAITING:
            self._waiting.popleft()
        self._waiting.append(batch)
        self._came.set()

    def skip(self, past: list[Found]) -> None:
        """Do not yield these again."""
        self._known = {found.ledger.request for found in past[-MAX_PAST:]}

    async def requests(self, wanted: Wanted) -> AsyncIterator[Found]:
        """Yield the wanted requests as they end; without end."""
        while True:
            await self._came.wait()
            self._came.clear()
            while self._waiting:
                for found in founds(self._waiting.popleft()):
                    if found.ledger.request not in self._known and wanted.takes(found.ledger):
                        yield found


async def follower(desk: Desk, service: str) -> Follower:
    """Begin to listen to a service. Raises `BusError`."""
    made = Follower()
    await desk.bus.subscribe(LedgerBatch, made.hear, service=service)
    return made
