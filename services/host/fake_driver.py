"""A driver without processes, for tests: lives end when a test says so."""

from __future__ import annotations

import asyncio
import itertools
from typing import Literal

from services.host.ports import CannotRun, Found, NotNow, Order, Prepared, Running, Say
from services.host.room import Grant


class FakeRunning:
    """One life."""

    def __init__(self, order: Order, pid: int, *, drain_takes_s: float) -> None:
        self.order = order
        self.pid = pid
        self.metrics_port = 0
        self.drained_s: float | None = None
        """How long it was given, once it was told to stop."""
        self._drain_takes_s = drain_takes_s
        self._end: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def has_ended(self) -> bool:
        """Whether it is over."""
        return self._end.done()

    def end(self, how: str) -> None:
        """Let it end by itself."""
        if not self._end.done():
            self._end.set_result(how)

    async def wait(self) -> str:
        """See `Running.wait`."""
        return await asyncio.shield(self._end)

    async def stop(self, *, drain_s: float) -> None:
        """See `Running.stop`."""
        self.drained_s = drain_s
        await asyncio.sleep(min(drain_s, self._drain_takes_s))
        self.end("stopped")


class FakeDriver:
    """Remembers what it started; fails as told."""

    kind: Literal["processes"] = "processes"

    def __init__(self, *, drain_takes_s: float = 0.0, prepare_takes_s: float = 0.0) -> None:
        self.lives: list[FakeRunning] = []
        self.grants: list[Grant] = []
        self.fails: list[CannotRun | NotNow] = []
        """What the next attempts to prepare raise."""
        self.crashes = 0
        """How many of the next lives end at once."""
        self.weight_bytes = 0
        self.asked = 0
        self.closed = 0
        self._drain_takes_s = drain_takes_s
        self._prepare_takes_s = prepare_takes_s
        self._pids = itertools.count(1000)

    async def found(self) -> list[Found]:
        """See `Driver.found`."""
        self.asked += 1
        return [Found(order=life.order, running=life) for life in self.lives]

    async def prepare(self, order: Order, say: Say) -> Prepared:
        """See `Driver.prepare`."""
        say("check")
        await asyncio.sleep(self._prepare_takes_s)
        if self.fails:
            raise self.fails.pop(0)
        return Prepared(weight_bytes=self.weight_bytes, fingerprint=order.fingerprint or "f0")

    async def start(self, order: Order, prepared: Prepared, grant: Grant) -> Running:
        """See `Driver.start`."""
        life = FakeRunning(order, next(self._pids), drain_takes_s=self._drain_takes_s)
        self.lives.append(life)
        self.grants.append(grant)
        if self.crashes:
            self.crashes -= 1
            life.end("exit code 1")
        return life

    async def close(self) -> None:
        """See `Driver.close`."""
        self.closed += 1

    def of(self, name: str) -> list[FakeRunning]:
        """Return the lives of a replica, the oldest first."""
        return [life for life in self.lives if life.order.name == name]

    @property
    def running(self) -> list[str]:
        """Names of those that live."""
        return sorted(life.order.name for life in self.lives if not life.has_ended)
