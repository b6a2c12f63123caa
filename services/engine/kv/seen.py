"""Remembers a bounded number of things, the latest ones: whether one was seen before.

Exact for what it remembers, and silent about the rest: of the last `bound` different things at least half are remembered.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from typing_extensions import override

T = TypeVar("T", bound=Hashable)


class Seen(Generic[T]):
    """Two generations: the older one is forgotten as a whole when the younger is full."""

    def __init__(self, bound: int) -> None:
        """`bound`: things remembered at most; 0: none."""
        self._room = (bound + 1) // 2
        self._young: set[T] = set()
        self._old: set[T] = set()

    @override
    def __repr__(self) -> str:
        return f"<Seen {len(self)} of {2 * self._room}>"

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def note(self, thing: T) -> bool:
        """Note a thing; return whether it was seen before, as far as is remembered."""
        if not self._room:
            return False
        if thing in self._young:
            return True
        was_seen = thing in self._old
        if len(self._young) >= self._room:
            self._old, self._young = self._young, set()
        # It moves to the younger ones, so that what is in use is not forgotten.
        self._old.discard(thing)
        self._young.add(thing)
        return was_seen
