"""The life of a mirror as a table, and when one that failed is tried again. Pure.

Only `REBUILDING` and `HEALTHY` serve. A mirror that fails or stalls is killed at once, and is `ENDING` until its process
can run no instruction any more: then it is gone (`DOWN`), or it waits in the kernel for a disk with the kill pending (`STUCK`).
From both, what it had under way may go elsewhere; a new process starts only from `DOWN`, since two may never have the same files open.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from shared.transitions import Transitions


class MirrorState(StrEnum):
    """Where a mirror stands."""

    DOWN = "down"
    OPENING = "opening"
    REBUILDING = "rebuilding"
    HEALTHY = "healthy"
    ENDING = "ending"
    STUCK = "stuck"
    STOPPED = "stopped"


class Event(StrEnum):
    """What happens to a mirror."""

    START = "start"
    OPENED = "opened"
    """Its files are open and all keys are told."""
    COMPLETE = "complete"
    """It has all that the other one has."""
    BEHIND = "behind"
    """It lacks something that the other one has."""
    KILLED = "killed"
    """We have sent the kill: it failed, it stalled, or it is to stop."""
    QUIET = "quiet"
    """All its threads wait in the kernel with the kill pending."""
    GONE = "gone"
    """Its process has ended, whoever ended it."""
    STOP = "stop"


_S = MirrorState
_running = {Event.KILLED: _S.ENDING, Event.GONE: _S.DOWN}
LIFE: Transitions[MirrorState, Event] = Transitions(
    "mirror",
    {
        _S.DOWN: {Event.START: _S.OPENING, Event.STOP: _S.STOPPED},
        _S.OPENING: {Event.OPENED: _S.REBUILDING, **_running},
        _S.REBUILDING: {Event.COMPLETE: _S.HEALTHY, **_running},
        _S.HEALTHY: {Event.BEHIND: _S.REBUILDING, **_running},
        _S.ENDING: {Event.QUIET: _S.STUCK, Event.GONE: _S.DOWN},
        _S.STUCK: {Event.GONE: _S.DOWN},
        _S.STOPPED: {},
    },
)
SERVING = frozenset({_S.REBUILDING, _S.HEALTHY})
RUNNING = frozenset({_S.OPENING, _S.REBUILDING, _S.HEALTHY})


class Trouble(StrEnum):
    """Why a mirror was dropped."""

    NONE = ""
    CRASHED = "crashed"
    """Its process died of what it did: a file cut under it, or one that LMDB cannot bear."""
    KILLED = "killed"
    """Somebody else ended its process (the kernel, for want of memory): nothing is wrong with the files."""
    DAMAGED = "damaged"
    """LMDB, or our check, says that the files are no good."""
    STALLED = "stalled"
    """No answer within the deadline."""
    FULL = "full"
    READ_ONLY = "read_only"
    IO = "io"
    """The disk refused to read or write."""
    VANISHED = "vanished"
    """The folder is not there any more."""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """How the next process of a mirror is to begin."""

    after_s: float
    empty: bool = False
    """Whether it throws away what it finds."""
    read_only: bool = False
    """Whether it only reads: the disk does not take anything for now."""


class RetryRule(msgspec.Struct, frozen=True, kw_only=True):
    """When a mirror that failed is tried again."""

    first_s: float = 0.1
    max_s: float = 30.0
    crashes_to_empty: int = 3
    """Crashes, or stalls while it opened, in a row until its files count as the reason."""
    calm_s: float = 60.0
    """Service without trouble after which the past is forgotten."""
    write_again_s: float = 30.0
    """After a full or read-only disk: when writing is tried again."""


class Record(msgspec.Struct, kw_only=True):
    """What is remembered of a mirror's troubles."""

    failures: int = 0
    crashes: int = 0


def next_start(
    rule: RetryRule, record: Record, trouble: Trouble, *, was_opening: bool, served_s: float
) -> Start:
    """Return how and when to begin again, and note the trouble in the record."""
    if served_s >= rule.calm_s:
        record.failures = record.crashes = 0
    record.failures += 1
    pause_s = min(rule.max_s, rule.first_s * 2.0 ** min(record.failures - 1, 16))
    match trouble:
        case Trouble.DAMAGED:
            record.crashes = 0
            return Start(after_s=pause_s, empty=True)
        case Trouble.CRASHED:
            record.crashes += 1
        case Trouble.STALLED if was_opening:
            record.crashes += 1
        case Trouble.FULL | Trouble.READ_ONLY:
            return Start(after_s=0.0 if record.failures == 1 else pause_s, read_only=True)
        case Trouble.NONE | Trouble.KILLED | Trouble.STALLED | Trouble.IO | Trouble.VANISHED:
            pass
    if record.crashes >= rule.crashes_to_empty:
        record.crashes = 0
        return Start(after_s=pause_s, empty=True)
    return Start(after_s=pause_s)
