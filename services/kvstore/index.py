"""What is stored, where, and what goes first when room is needed: LRU-K with K = 2 over all namespaces, under one budget in bytes. Pure.

LRU-K (O'Neil, 1993): the victim is the value whose second last use is longest ago; values used once go before all others,
by their last use.
Uses within `correlated_s` are one use: a prompt that is loaded block by block, or tried twice, is no sign of worth.
An evicted value's last use is remembered for a while, so that one that comes back counts as used twice.

A use only ever moves a value back in the order of eviction. So the heap needs one cell a value: a cell that is found too early
is put back where it belongs, and a use costs nothing but two numbers.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from typing_extensions import override

PAGE = 4096
LMDB_HEADER = 16
MIN_GHOSTS = 1024


def charge(stored_bytes: int) -> int:
    """Return what a value takes on the disk: whole pages, the first with LMDB's header."""
    return -(-(stored_bytes + LMDB_HEADER) // PAGE) * PAGE


class Entry:
    """One stored value."""

    __slots__ = (
        "charged",
        "generation",
        "is_here",
        "is_noted",
        "key",
        "last",
        "mirrors",
        "prior",
        "space",
    )

    def __init__(self, space: str, key: bytes, *, charged: int, generation: int) -> None:
        self.space = space
        self.key = key
        self.charged = charged
        self.generation = generation
        self.mirrors = 0
        """Bits of the mirrors that have it."""
        self.last = 0.0
        self.prior = 0.0
        """Last use before those that count as one with `last`; 0: none."""
        self.is_here = True
        self.is_noted = True
        """Whether the disk knows of its last use."""

    @property
    def order(self) -> tuple[int, float]:
        """Return its place in the order of eviction; the smallest goes first."""
        return (1, self.prior) if self.prior else (0, self.last)

    @override
    def __repr__(self) -> str:
        return f"<Entry {self.key.hex()[:12]} mirrors={self.mirrors:b} last={self.last:.0f} prior={self.prior:.0f}>"


class Index:
    """All stored values. Times are seconds of one clock that goes on over restarts; one that steps back counts as standing still."""

    def __init__(self, *, budget_bytes: int, correlated_s: float) -> None:
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self._correlated_s = correlated_s
        self._spaces: dict[str, dict[bytes, Entry]] = {}
        self._heap: list[tuple[tuple[int, float], int, Entry]] = []
        self._ghosts: OrderedDict[tuple[str, bytes], float] = OrderedDict()
        self._number = 0
        self._count = 0
        self._now = 0.0
        self._unnoted: dict[tuple[str, bytes], Entry] = {}

    @override
    def __repr__(self) -> str:
        return f"<Index {self._count} entries {self.used_bytes}/{self.budget_bytes} bytes>"

    def __len__(self) -> int:
        return self._count

    def get(self, space: str, key: bytes) -> Entry | None:
        """Return the value's entry."""
        return self._spaces.get(space, {}).get(key)

    def spaces(self) -> list[str]:
        """Return the namespaces with entries."""
        return list(self._spaces)

    def entries(self, space: str) -> list[Entry]:
        """Return the entries of a namespace."""
        return list(self._spaces.get(space, {}).values())

    def all_entries(self) -> Iterator[Entry]:
        """Return all entries."""
        for space in list(self._spaces.values()):
            yield from list(space.values())

    def add(self, space: str, key: bytes, *, charged: int, generation: int, now: float) -> Entry:
        """Add a value that is not there yet; it was used now. Room for it is made by `make_room`."""
        entry = self._insert(space, key, charged, generation)
        self._now = entry.last = max(now, self._now)
        entry.is_noted = True  # written beside the value
        ghost = self._ghosts.pop((space, key), 0.0)
        if ghost and entry.last - ghost >= self._correlated_s:
            entry.prior = ghost
        self._push(entry)
        return entry

    def restore(
        self, space: str, key: bytes, *, charged: int, generation: int, last: float, prior: float
    ) -> Entry:
        """Add a value that was found on a disk with its history, or return the entry that is there already, with the newer history."""
        entry = self.get(space, key)
        if entry is None:
            entry = self._insert(space, key, charged, generation)
            entry.last, entry.prior = last, prior
            self._push(entry)
        elif last > entry.last:
            entry.last, entry.prior = last, max(prior, entry.prior)
        self._now = max(self._now, last)
        return entry

    def use(self, entry: Entry, now: float) -> None:
        """Note a use."""
        self._now = now = max(now, self._now)
        if now - entry.last >= self._correlated_s:
            entry.prior = entry.last
        entry.last = now
        if entry.is_noted and entry.is_here:
            entry.is_noted = False
            self._unnoted[(entry.space, entry.key)] = entry

    def remove(self, entry: Entry) -> None:
        """Take a value out. A second call changes nothing."""
        if not entry.is_here:
            return
        entry.is_here = False
        space = self._spaces[entry.space]
        del space[entry.key]
        if not space:
            del self._spaces[entry.space]
        self._unnoted.pop((entry.space, entry.key), None)
        self.used_bytes -= entry.charged
        self._count -= 1
        if len(self._heap) > 2 * self._count + MIN_GHOSTS:
            self._heap = [cell for cell in self._heap if cell[2].is_here]
            heapq.heapify(self._heap)

    def make_room(self, needed_bytes: int) -> list[Entry]:
        """Take out, and return, the values that must go so that as many bytes fit into the budget; all, where that is not enough."""
        gone: list[Entry] = []
        while self.used_bytes + needed_bytes > self.budget_bytes and self._heap:
            order, _, entry = heapq.heappop(self._heap)
            if not entry.is_here:
                continue
            if entry.order != order:
                self._push(entry)
                continue
            self.remove(entry)
            self._remember(entry)
            gone.append(entry)
        return gone

    def take_unnoted(self, limit: int) -> list[Entry]:
        """Return entries whose last use the disk does not know, and count them as noted."""
        found: list[Entry] = []
        while self._unnoted and len(found) < limit:
            _, entry = self._unnoted.popitem()
            entry.is_noted = True
            found.append(entry)
        return found

    def _insert(self, space: str, key: bytes, charged: int, generation: int) -> Entry:
        entry = Entry(space, key, charged=charged, generation=generation)
        if self._spaces.setdefault(space, {}).setdefault(key, entry) is not entry:
            raise ValueError(f"{entry} is there already")
        self.used_bytes += charged
        self._count += 1
        return entry

    def _push(self, entry: Entry) -> None:
        self._number += 1
        heapq.heappush(self._heap, (entry.order, self._number, entry))

    def _remember(self, entry: Entry) -> None:
        self._ghosts[(entry.space, entry.key)] = entry.last
        while len(self._ghosts) > self._count + MIN_GHOSTS:
            self._ghosts.popitem(last=False)


def by_space(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Return the entries of each namespace."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.space, []).append(entry)
    return found
