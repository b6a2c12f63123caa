"""Who acts, of several processes that could: a record that its holder renews, and an epoch by which late acts are refused.

`shared.lease_term` decides; this reads and writes the record. A holder that was paused meanwhile looks at its clock before it acts; what it
has sent already carries its old epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from shared import logs
from shared.errors import BusClosed, BusError, Conflict, RequestTimeout
from shared.jetstream import wait
from shared.lease_term import RENEWALS, LeaseTerm, Wait
from shared.messages import LeaseRecord
from shared.quiet import Quiet
from shared.records import Records


class Lease:
    """A candidate's part: `run` takes and renews, `holds` is asked before each act."""

    def __init__(
        self,
        records: Records,
        *,
        role: str,
        holder: str,
        ttl_s: float,
        at_least: Callable[[], int] = lambda: 0,
    ) -> None:
        self._records = records
        self._role, self._holder = role, holder
        self._at_least = at_least
        self._term = LeaseTerm(role, holder, ttl_s=ttl_s)
        self._clock = asyncio.get_running_loop().time
        self._log = logs.get("lease")
        self._quiet = Quiet(self._clock)
        self._led = False

    @property
    def holds(self) -> bool:
        """Whether we may act now: asked before each act."""
        return self._term.holds(self._clock())

    @property
    def epoch(self) -> int:
        """Of our present term; what we order carries it."""
        return self._term.epoch

    async def run(self, stop: asyncio.Event, on_change: Callable[[], None]) -> None:
        """Take it when it is free and renew it, until `stop`; then leave it to others. `on_change`: `holds` has changed."""
        while not stop.is_set():
            pause_s = self._term.period_s / RENEWALS
            try:
                pause_s = await self._turn()
            except BusClosed:
                return
            except Conflict:
                # Somebody else has it since we looked.
                self._term.lost()
            except BusError as error:
                if times := self._quiet.due(self._role):
                    self._log.info(
                        "lease_out_of_reach", role=self._role, reason=str(error), times=times
                    )
            if self.holds != self._led:
                self._led = self.holds
                self._log.info("lease", role=self._role, holds=self._led, epoch=self.epoch)
                on_change()
            await wait(stop, pause_s)
        await self._release()

    async def _turn(self) -> float:
        """Read, decide, write; return the time until the next turn. Raises `BusError`."""
        begun_s = self._clock()
        async with self._deadline():
            entry = await self._records.get(LeaseRecord, self._role)
            asked_s = self._clock()
            decision = self._term.decide(entry, asked_s, at_least=self._at_least())
            if isinstance(decision, Wait):
                self._term.lost()
                return min(decision.for_s, self._term.period_s)
            await self._records.put(decision.record, expected=decision.expected)
            self._term.written(decision.record, asked_s=asked_s)
        # From its beginning: however slow the server is, renewals stay a period apart.
        return max(0.0, begun_s + self._term.period_s - self._clock())

    @asynccontextmanager
    async def _deadline(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._term.term_s):
                yield
        except TimeoutError:
            raise RequestTimeout(f"no answer within {self._term.term_s:g} s") from None

    async def _release(self) -> None:
        if not self.holds:
            return
        self._term.lost()
        try:
            async with self._deadline():
                entry = await self._records.get(LeaseRecord, self._role)
                if entry is not None and entry.record.holder == self._holder:
                    free = msgspec.structs.replace(entry.record, holder="")
                    await self._records.put(free, expected=entry.revision)
        except BusError as error:
            self._log.info("lease_not_released", role=self._role, reason=str(error))
