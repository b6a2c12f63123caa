"""When a lease may be taken, and how long it is held: the decisions of one candidate. Pure.

No wall clocks are compared: a candidate takes a lease that it has not seen change for `ttl_s` of its own clock, and a holder that could
not renew for two thirds of that stops acting by its own clock, before anybody else may begin.
"""

from __future__ import annotations

import msgspec

from shared.entry import Entry
from shared.messages import LeaseRecord

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

    @property
    def term_s(self) -> float:
        """How long we hold it after a renewal was begun; one that takes longer is of no use."""
        return self._ttl_s * (RENEWALS - 1) / RENEWALS

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
        self._holds_until_s = asked_s + self.term_s

    def lost(self) -> None:
        """Note that it is not ours any more."""
        self._holds_until_s = float("-inf")
