"""What waits for a mirror, and whose turn it is: loads before saves, engines in turn. Pure.

A queue is bounded for each engine and kind; what does not fit is refused at once, so that it becomes a miss and no wait.
Saves get one turn after `LOADS_A_SAVE` loads, so that a host that loads all the time still learns.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import Generic, TypeVar

from typing_extensions import override

T = TypeVar("T")
LOADS_A_SAVE = 16


class Kind(StrEnum):
    """What is asked of a mirror."""

    LOAD = "load"
    SAVE = "save"


class FairQueue(Generic[T]):
    """Items of several engines."""

    def __init__(self, *, max_load_bytes: int, max_save_bytes: int) -> None:
        self._max = {Kind.LOAD: max_load_bytes, Kind.SAVE: max_save_bytes}
        """Bounds for each engine; one item always fits an empty queue."""
        self._lanes: dict[Kind, dict[int, deque[tuple[T, int]]]] = {kind: {} for kind in Kind}
        self._bytes: dict[tuple[Kind, int], int] = {}
        self._loads_in_a_row = 0

    @override
    def __repr__(self) -> str:
        return f"<FairQueue loads={self.waiting(Kind.LOAD)} saves={self.waiting(Kind.SAVE)}>"

    def waiting(self, kind: Kind) -> int:
        """Return how many items of a kind wait."""
        return sum(len(lane) for lane in self._lanes[kind].values())

    def waiting_bytes(self, kind: Kind) -> int:
        """Return how many bytes of a kind wait."""
        return sum(size for (of, _), size in self._bytes.items() if of is kind)

    def offer(self, engine: int, kind: Kind, item: T, size: int) -> bool:
        """Add an item at the end of its engine's lane; False where there is no room."""
        held = self._bytes.get((kind, engine), 0)
        if held and held + size > self._max[kind]:
            return False
        self._lanes[kind].setdefault(engine, deque()).append((item, size))
        self._bytes[(kind, engine)] = held + size
        return True

    def take(self, *, loads: bool, saves: bool) -> tuple[Kind, T] | None:
        """Take the next item of the kinds that are wanted now."""
        has_load = loads and bool(self._lanes[Kind.LOAD])
        has_save = saves and bool(self._lanes[Kind.SAVE])
        if has_load and not (has_save and self._loads_in_a_row >= LOADS_A_SAVE):
            self._loads_in_a_row += 1
            return Kind.LOAD, self._pop(Kind.LOAD)
        # A save waits while loads do, also where there is no room for them just now.
        is_free = not self._lanes[Kind.LOAD] or self._loads_in_a_row >= LOADS_A_SAVE
        if has_save and is_free:
            self._loads_in_a_row = 0
            return Kind.SAVE, self._pop(Kind.SAVE)
        return None

    def drop(self, engine: int) -> list[T]:
        """Take out and return all that an engine has waiting."""
        found: list[T] = []
        for kind in Kind:
            self._bytes.pop((kind, engine), None)
            found += [item for item, _ in self._lanes[kind].pop(engine, ())]
        return found

    def _pop(self, kind: Kind) -> T:
        lanes = self._lanes[kind]
        engine = next(iter(lanes))
        lane = lanes.pop(engine)
        item, size = lane.popleft()
        if lane:
            lanes[engine] = lane  # at the end: the others come first
            self._bytes[(kind, engine)] -= size
        else:
            del self._bytes[(kind, engine)]
        return item
