"""Who acts, of several processes that could: a record that its holder renews, and an epoch by which late acts are refused.

No wall clocks are compared: a candidate takes a lease that it has not seen change for `ttl_s` of its own clock, and a holder that could
not renew for two thirds of that stops acting by its own clock, before anybody else may begin. A holder that was paused meanwhile looks at
its clock before it acts; what it has sent already carries its old epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from shared import logs
from shared.entry import Entry
from shared.errors import BusClosed, BusError
from shared.jetstream import wait
from shared.messages import LeaseRecord
from shared.records import Records

RENEWALS = 3
"""A holder renews so often within `ttl_s`; missing two of them ends its term."""


class Take(msgspec.Struct, frozen=True):
    """Write the record: it is free, or ours."""

    expected: int
    record: LeaseRecord


class Wait(msgspec.Struct, frozen=True):
    """Somebody else holds it, or did lately."""

    for_s: float


class LeaseTerm:
    """The decisions of one candidate. Pure: times are of its own monotonic clock."""

    def __init__(self, role: str, holder: str, *, ttl_s: float) -> None:
        self.epoch = 0
        """Of our present or last term."""
        self._role, self._holder, self._ttl_s = role, holder, ttl_s
        self._seen_revision = -1
        self._seen_s = 0.0
        self._holds_until_s = float("-inf")

    def holds(self, now: float) -> bool:
        """Whether we may act now."""
        return now < self._holds_until_s

    @property
    def period_s(self) -> float:
        """Time between two renewals."""
        return self._ttl_s / RENEWALS

    def decide(self, entry: Entry[LeaseRecord] | None, now: float, *, at_least: int) -> Take | Wait:
        """Return what to do about the record as it was just read. `at_least`: an epoch that others have obeyed already."""
        if entry is None:
            return self._take(0, 0, at_least)
        record = entry.record
        is_ours = record.holder == self._holder and record.epoch == self.epoch
        if is_ours and at_least > self.epoch:
            # Others obey a higher one: the record was lost once and counts anew.
            return self._take(entry.revision, record.epoch, at_least)
        if is_ours:
            return Take(
                entry.revision, msgspec.structs.replace(record, renewals=record.renewals + 1)
            )
        if not record.holder:
            return self._take(entry.revision, record.epoch, at_least)
        if entry.revision != self._seen_revision:
            self._seen_revision, self._seen_s = entry.revision, now
        # Its own word on how long it may be silent: settings of two candidates may differ.
        left_s = self._seen_s + max(record.ttl_s, self._ttl_s) - now
        return Wait(left_s) if left_s > 0 else self._take(entry.revision, record.epoch, at_least)

    def _take(self, expected: int, epoch: int, at_least: int) -> Take:
        record = LeaseRecord(
            role=self._role,
            holder=self._holder,
            epoch=max(epoch, at_least, self.epoch) + 1,
            ttl_s=self._ttl_s,
        )
        return Take(expected, record)

    def written(self, record: LeaseRecord, *, asked_s: float) -> None:
        """Note that our record was written; the writing began at `asked_s`."""
        self.epoch = record.epoch
        self._holds_until_s = asked_s + self._ttl_s * (RENEWALS - 1) / RENEWALS

    def lost(self) -> None:
        """Note that it is not ours any more."""
        self._holds_until_s = float("-inf")


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
            try:
                pause_s = await self._turn()
            except BusClosed:
                return
            except BusError as error:
                self._log.info("lease_out_of_reach", role=self._role, reason=str(error))
                pause_s = self._term.period_s / RENEWALS
            if self.holds != self._led:
                self._led = self.holds
                self._log.info("lease", role=self._role, holds=self._led, epoch=self.epoch)
                on_change()
            await wait(stop, pause_s)
        await self._release()

    async def _turn(self) -> float:
        """Read, decide, write; return the time until the next turn. Raises `BusError`."""
        entry = await self._records.get(LeaseRecord, self._role)
        asked_s = self._clock()
        decision = self._term.decide(entry, asked_s, at_least=self._at_least())
        if isinstance(decision, Wait):
            self._term.lost()
            return min(decision.for_s, self._term.period_s)
        await self._records.put(decision.record, expected=decision.expected)
        self._term.written(decision.record, asked_s=asked_s)
        return self._term.period_s

    async def _release(self) -> None:
        if not self.holds:
            return
        self._term.lost()
        try:
            entry = await self._records.get(LeaseRecord, self._role)
            if entry is not None and entry.record.holder == self._holder:
                free = msgspec.structs.replace(entry.record, holder="")
                await self._records.put(free, expected=entry.revision)
        except BusError as error:
            self._log.info("lease_not_released", role=self._role, reason=str(error))
