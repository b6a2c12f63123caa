"""One replica from the order to its end: prepares, starts, waits, and begins again after a pause, until told to stop.

What may happen is `replicas.LIFE`; whatever happens here is told to the table first.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from typing_extensions import override

from services.host.ports import CannotRun, Driver, NotNow, Order, Prepared, Running
from services.host.replicas import Event, Replicas, shortened
from services.host.room import claim_of
from shared import logs
from shared.clock import loop_clock, wall_time_s
from shared.spec.footprint import memory_needed
from shared.spec.model import GIB

T = TypeVar("T")
LOOK_S = 60.0
"""Between two looks at what cannot run."""


def wall_us() -> int:
    """Return the wall time in microseconds."""
    return int(wall_time_s() * 1e6)


class Keeper:
    """Keeps one replica. `run` once."""

    def __init__(
        self,
        order: Order,
        *,
        replicas: Replicas,
        driver: Driver,
        changed: Callable[[], None],
        running: Running | None = None,
    ) -> None:
        """`running`: its present life, where it was taken over."""
        self.order = order
        self._replicas = replicas
        self._driver = driver
        self._changed = changed
        self._clock = loop_clock()
        self._log = logs.get("host").bind(replica=order.name)
        self._is_stopped = False
        self._drain_s = 0.0
        self._running = running
        self._ordered = asyncio.Event()
        self._leash: asyncio.Timeout | None = None
        """Around what can be given up at any moment."""

    @override
    def __repr__(self) -> str:
        return f"<Keeper {self.order.name} running={self._running is not None}>"

    async def run(self) -> None:
        """Keep it until it is stopped."""
        while not self._is_stopped:
            taken = self._running
            again = await (self._live() if taken is None else self._watch(taken))
            await self._freely(self._pause() if again else self._mended())

    def look(self) -> None:
        """Look now whether what was wrong is mended: somebody orders it once more."""
        self._ordered.set()

    def stop(self, *, drain_s: float) -> None:
        """Begin to end it: what runs gets `drain_s`. The table knows already."""
        self._is_stopped = True
        self._drain_s = drain_s
        if self._leash is not None:
            self._leash.reschedule(self._clock())

    async def _live(self) -> bool:
        """Be one life; return whether another one shall follow."""
        try:
            prepared = await self._freely(self._prepare())
            if prepared is None:
                return False
            self._tell(Event.PREPARED)
            grant = self._replicas.room.grant_of(self.order.name)
            running = await self._driver.start(self.order, prepared, grant)
        except CannotRun as error:
            return self._fail(str(error))
        except NotNow as error:
            return self._end(str(error))
        return await self._watch(running)

    async def _watch(self, running: Running) -> bool:
        """Follow a life to its end; return whether another one shall follow."""
        self._running = running
        self._note(pid=running.pid, metrics_port=running.metrics_port)
        self._log.info("replica_started", pid=running.pid)
        how = await self._freely(running.wait())
        if how is None:
            await running.stop(drain_s=self._drain_s)
        self._running = None
        return how is not None and self._end(how)

    async def _prepare(self) -> Prepared:
        prepared = await self._driver.prepare(self.order, lambda step: self._note(step=step))
        self._note(fingerprint=prepared.fingerprint)
        self._promise(prepared)
        return prepared

    def _promise(self, prepared: Prepared) -> None:
        """Keep room for the weights, whose size is known now."""
        needed = self._needed(prepared)
        if lack := self._replicas.room.promise(self.order.name, needed):
            raise NotNow(lack.reason)

    def _needed(self, prepared: Prepared) -> int:
        """Return the memory that it will take. Raises `CannotRun` where this host will never have it."""
        needed = memory_needed(self.order.spec, weight_bytes=prepared.weight_bytes)
        has = self._replicas.room.memory_bytes
        if has and needed > has:
            raise CannotRun(
                f"it needs about {needed / GIB:.1f} GiB of memory, this host has {has / GIB:.1f} GiB to give; "
                "a smaller kvTiers.pool may do"
            )
        return needed

    async def _pause(self) -> bool:
        replica = self._replicas.get(self.order.name)
        assert replica is not None
        await asyncio.sleep(replica.state.retry_s)
        self._tell(Event.AGAIN)
        return True

    async def _mended(self) -> bool:
        """Return when what had failed may do better now: somebody has changed the files, or what else was wrong."""
        while True:
            self._ordered.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._ordered.wait()
            try:
                self._needed(await self._driver.prepare(self.order, lambda _: None))
            except (CannotRun, NotNow) as error:
                self._note(reason=shortened(str(error)))
                continue
            claim = claim_of(self.order.spec)
            if self._replicas.mended(self.order.name, claim, now_us=wall_us()):
                self._changed()
                return True

    async def _freely(self, work: Awaitable[T]) -> T | None:
        """Do what can be given up when the replica is told to stop; none where it was."""
        done = None
        try:
            async with asyncio.timeout(0.0 if self._is_stopped else None) as self._leash:
                done = await work
        except TimeoutError:
            if not self._is_stopped:
                raise
        finally:
            self._leash = None
        return None if self._is_stopped else done

    def _fail(self, reason: str) -> bool:
        if not self._is_stopped:
            self._log.error("replica_failed", reason=reason)
            self._replicas.on(self.order.name, Event.CANNOT, now_us=wall_us(), reason=reason)
            self._changed()
        return False

    def _end(self, how: str) -> bool:
        if self._is_stopped:
            return False
        replica = self._replicas.get(self.order.name)
        assert replica is not None
        reason = f"{replica.said}\n{how}" if replica.said else how
        state = self._replicas.ended(
            self.order.name,
            reason,
            now=self._clock(),
            now_us=wall_us(),
            draw=random.random(),  # noqa: S311 - spreads starts
        )
        self._log.warning(
            "replica_ended", reason=reason, retry_s=state.retry_s, restarts=state.restarts
        )
        self._changed()
        return True

    def _tell(self, event: Event) -> None:
        self._replicas.on(self.order.name, event, now_us=wall_us())
        self._changed()

    def _note(self, **changes: object) -> None:
        self._replicas.note(self.order.name, **changes)
        self._changed()
