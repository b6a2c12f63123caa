"""What was read of a bucket of records: a key, all of it once, and all of it as it is followed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from shared.entry import Entry
from shared.messages import Message

M = TypeVar("M", bound=Message)


class Reading(msgspec.Struct, Generic[M], frozen=True):
    """A whole bucket, as it was read once."""

    entries: dict[str, Entry[M]]
    unreadable: frozenset[str]
    """Keys that hold something which is no such record."""
    seq: int = 0
    """Newest state of the bucket that it knows of."""


class State(msgspec.Struct, Generic[M], frozen=True):
    """The newest state of one key, as it was read once."""

    revision: int
    """0: there is none."""
    entry: Entry[M] | None = None
    """None: it was deleted, or is no such record."""
    is_unreadable: bool = False


class View(Generic[M]):
    """A watched bucket, as it was last read."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.entries: dict[str, Entry[M]] = {}
        """By key."""
        self.unreadable: frozenset[str] = frozenset()
        """Keys that hold something which is no such record."""
        self.wake = asyncio.Event()
        """There is something to do for who follows the bucket."""
        self.is_asked = True
        """Whether the whole bucket shall be read."""
        self.is_over = False
        self._clock = clock
        self._read_s: float | None = None
        self._seq = 0
        """Newest state of the bucket that was read."""

    def look(self) -> None:
        """Have the whole bucket read soon."""
        self.is_asked = True
        self.wake.set()

    def stop(self) -> None:
        """Follow the bucket no longer; it also ends with the bus and with the group that it runs in."""
        self.is_over = True
        self.wake.set()

    @property
    def is_read(self) -> bool:
        """Whether it was read at all."""
        return self._read_s is not None

    @property
    def age_s(self) -> float:
        """How long ago the whole bucket was last read; infinite before the first time."""
        return float("inf") if self._read_s is None else self._clock() - self._read_s

    def replace(self, reading: Reading[M], *, read_s: float) -> bool:
        """Take a whole reading that began at `read_s`; return whether anything changed.

        What is known to be newer than the reading stays, unless the bucket counts anew: then it is another one.
        """
        first, self._read_s = not self.is_read, read_s
        entries = dict(reading.entries)
        if reading.seq >= self._seq:
            entries |= {key: e for key, e in self.entries.items() if e.revision > reading.seq}
        self._seq = reading.seq
        changed = (entries, reading.unreadable) != (self.entries, self.unreadable)
        self.entries, self.unreadable = entries, reading.unreadable
        return changed or first

    def update(self, key: str, state: State[M]) -> bool:
        """Take the newest state of one key; return whether anything changed."""
        known = self.entries.get(key)
        if known is not None and known.revision >= state.revision:
            return False
        self._seq = max(self._seq, state.revision)
        self.entries.pop(key, None)
        if state.entry is not None:
            self.entries[key] = state.entry
        before, others = self.unreadable, self.unreadable - {key}
        self.unreadable = others | {key} if state.is_unreadable else others
        return known is not None or state.entry is not None or before != self.unreadable
