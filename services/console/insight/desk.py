"""What the commands read from: the bus of a running platform, the ledgers that it keeps, and who beats on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Self

from services.console.insight.found import Found, founds
from services.console.plain import one_line
from shared.bus import Subscription
from shared.errors import UserError
from shared.history import History
from shared.ids import EngineId
from shared.messages import HEARTBEAT_S, EngineHeartbeat, LedgerBatch
from shared.typedbus import TypedBus

LISTEN_S = 1.2 * HEARTBEAT_S
"""A beat of everybody who is alive, with room for a late one."""
KEPT_S = 3600.0
"""How far back ledgers go."""
MAX_ENGINES = 4096
"""So many are named; of further ones the ids are shown."""
NAMED_BATCHES = 200
"""Of the latest messages of all services, to say which ones there are."""


class Desk:
    """Reads one bus. Make it with `open`; it ends with the bus."""

    def __init__(self, bus: TypedBus, history: History) -> None:
        self.bus = bus
        self._history = history
        self._engines: dict[EngineId, EngineHeartbeat] = {}
        self._opened_at = asyncio.get_running_loop().time()
        self._beats: Subscription | None = None

    @classmethod
    async def open(cls, bus: TypedBus) -> Self:
        """Return a desk that has begun to listen. Raises `BusError`."""
        desk = cls(bus, await History.open(bus))
        desk._beats = await bus.subscribe(EngineHeartbeat, desk._on_beat)
        return desk

    def _on_beat(self, beat: EngineHeartbeat) -> None:
        if beat.engine in self._engines or len(self._engines) < MAX_ENGINES:
            self._engines[beat.engine] = beat

    async def batches(
        self, *, since_s: float = KEPT_S, service: str = "", newest_first: bool = False
    ) -> AsyncIterator[LedgerBatch]:
        """Yield what is kept, of one service or all. Raises `NoHistory`, `BusError`, `UserError` for what cannot be a service's name."""
        replay = partial(
            self._history.replay, LedgerBatch, since_s=since_s, newest_first=newest_first
        )
        async for batch in replay(service=service) if service else replay():
            yield batch

    async def requests(
        self, *, since_s: float = KEPT_S, service: str = "", newest_first: bool = False
    ) -> AsyncIterator[Found]:
        """Yield the requests of `batches`."""
        async for batch in self.batches(
            since_s=since_s, service=service, newest_first=newest_first
        ):
            found = founds(batch)
            for one in reversed(found) if newest_first else found:
                yield one

    async def names(self) -> dict[str, str]:
        """Return what people call the engines that are alive, by id."""
        await self._listened()
        return {beat.engine: one_line(beat.name) for beat in self._engines.values()}

    async def check_service(self, service: str) -> None:
        """Raise `UserError` with the known ones where nobody has heard of a service."""
        await self._listened()
        known = {str(beat.service) for beat in self._engines.values()}
        if service in known:
            return
        read = 0
        async for batch in self.batches(newest_first=True):
            known.add(batch.service)
            read += 1
            if service in known:
                return
            if read == NAMED_BATCHES:
                break
        listed = (
            f"known: {', '.join(sorted(known))}"
            if known
            else "no engine beats and no ledger is kept"
        )
        raise UserError(f"no service {service!r}", hint=listed)

    async def _listened(self) -> None:
        """Return when everybody alive must have been heard."""
        passed_s = asyncio.get_running_loop().time() - self._opened_at
        await asyncio.sleep(max(0.0, LISTEN_S - passed_s))
