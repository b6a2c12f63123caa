"""When a process that ended is started again. Pure: exits and times in, a decision out."""

from __future__ import annotations

import msgspec

BASE_DELAY_S = 0.5
MAX_DELAY_S = 30.0
STABLE_S = 60.0
"""A process that lived this long starts with a clean record."""
START_ATTEMPTS = 3
"""Ends without ever having been ready, in a row, after which another try will not help either."""


class Record(msgspec.Struct, frozen=True):
    """What is remembered of one process."""

    failures: int = 0
    """Ends in a row without a stable life between them."""
    was_ready: bool = False
    """Whether any life of it was ready."""


class Again(msgspec.Struct, frozen=True):
    """Start it again after a while."""

    delay_s: float
    record: Record


class GiveUp(msgspec.Struct, frozen=True):
    """It cannot start here; somebody must change something first."""

    failures: int


def after_exit(record: Record, *, lived_s: float, ready: bool) -> Again | GiveUp:
    """Decide after an end that nobody asked for; `ready` says whether this life was ready."""
    failures = 1 if lived_s >= STABLE_S else record.failures + 1
    was_ready = record.was_ready or ready
    if not was_ready and failures >= START_ATTEMPTS:
        return GiveUp(failures=failures)
    delay_s = min(MAX_DELAY_S, BASE_DELAY_S * 2 ** (failures - 1))
    return Again(delay_s=delay_s, record=Record(failures=failures, was_ready=was_ready))
