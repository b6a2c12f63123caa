"""What can be loaded now, and who must be told: the index, the mirrors that serve, and the news between them. Pure.

A key can be loaded when a mirror that serves has it. Whatever changes (a value is kept, evicted, found broken, a mirror comes or goes),
each affected entry is looked at once more, and news is what differs from what was told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from services.kvstore.index import Entry, Index, charge
from services.kvstore.trailer import TRAILER_BYTES

MAX_REMEMBERED = 1_000_000
LOOK_AT_ONCE = 5_000
"""Entries looked at before others get their turn: some milliseconds."""


class SpaceFacts(msgspec.Struct, kw_only=True):
    """What all values of a namespace have in common."""

    value_bytes: int
    told: dict[str, str] = {}


class Catalogue:
    """All values of all namespaces."""

    def __init__(self, *, budget_bytes: int, correlated_s: float) -> None:
        self.index = Index(budget_bytes=budget_bytes, correlated_s=correlated_s)
        self.facts: dict[str, SpaceFacts] = {}
        self.serving = 0
        """Bits of the mirrors that serve."""
        self._told: dict[str, set[bytes]] = {}
        self._news: dict[str, dict[bytes, bool]] = {}
        self._counted: dict[int, int] = {}
        self._unlooked: Iterator[Entry] = iter(())
        self._removed_meanwhile: dict[int, set[tuple[str, bytes]]] = {}

    # --- what engines know

    def can_load(self, space: str, key: bytes) -> Entry | None:
        """Return the entry of a value that a serving mirror has."""
        entry = self.index.get(space, key)
        return entry if entry is not None and entry.mirrors & self.serving else None

    def loadable(self, space: str) -> list[bytes]:
        """Return what engines of the namespace have been told, or will be with the next news."""
        return list(self._told.get(space, ()))

    def look_at(self, entries: Iterable[Entry]) -> None:
        """See whether these can be loaded, and remember what is news."""
        for entry in entries:
            can = entry.is_here and bool(entry.mirrors & self.serving)
            told = self._told.setdefault(entry.space, set())
            if can is (entry.key in told):
                continue
            (told.add if can else told.discard)(entry.key)
            news = self._news.setdefault(entry.space, {})
            if (
                news.pop(entry.key, can) is can
            ):  # else: it is as it was before the news that nobody heard
                news[entry.key] = can

    def look_further(self) -> bool:
        """Look at some of the entries that a mirror's coming or going affects; return whether any are left."""
        part = list(islice(self._unlooked, LOOK_AT_ONCE))
        self.look_at(part)
        return len(part) == LOOK_AT_ONCE

    def take_news(self) -> Iterator[tuple[str, list[bytes], list[bytes]]]:
        """Return for each namespace the keys gained and lost since the last call."""
        news, self._news = self._news, {}
        for space, changed in news.items():
            gained = [key for key, can in changed.items() if can]
            lost = [key for key, can in changed.items() if not can]
            if gained or lost:
                yield space, gained, lost

    # --- what there is

    def charged(self, space: str) -> int:
        """Return what a value of the namespace takes."""
        return charge(self.facts[space].value_bytes + TRAILER_BYTES)

    def make_room(self, needed_bytes: int) -> list[Entry]:
        """Evict what must go; see `Index.make_room`."""
        gone = self.index.make_room(needed_bytes)
        self._forgotten(gone)
        return gone

    def remove(self, entries: Iterable[Entry]) -> None:
        """Take values out."""
        gone = list(entries)
        for entry in gone:
            self.index.remove(entry)
        self._forgotten(gone)

    def _forgotten(self, gone: list[Entry]) -> None:
        self.look_at(gone)
        for mirror, removed in self._removed_meanwhile.items():
            bit = 1 << mirror
            removed.update((e.space, e.key) for e in gone if e.mirrors & bit)
            if len(removed) > MAX_REMEMBERED:
                removed.clear()  # then they come back with the mirror, and are evicted once more

    # --- mirrors

    def closed_to(self, mirror: int) -> None:
        """Note that a mirror does not hear of deletes from now on: what is removed meanwhile must not come back with it."""
        self._removed_meanwhile.setdefault(mirror, set())

    def begins(self, mirror: int) -> None:
        """Forget what a mirror had: it tells anew."""
        self.closed_to(mirror)
        mask = ~(1 << mirror)
        for entry in self.index.all_entries():
            entry.mirrors &= mask

    def has(
        self,
        mirror: int,
        space: str,
        value_bytes: int,
        rows: Iterable[tuple[bytes, int, float, float]],
    ) -> list[bytes]:
        """Take in what a mirror has: key, generation, last use, use before. Return the keys that it must delete."""
        removed = self._removed_meanwhile.get(mirror, set())
        facts = self.facts.setdefault(space, SpaceFacts(value_bytes=value_bytes))
        unwanted: list[bytes] = []
        charged = self.charged(space)
        for key, generation, last, prior in rows:
            if (space, key) in removed or facts.value_bytes != value_bytes:
                unwanted.append(key)
                continue
            entry = self.index.restore(
                space, key, charged=charged, generation=generation, last=last, prior=prior
            )
            if entry.generation != generation:
                unwanted.append(key)
            else:
                entry.mirrors |= 1 << mirror
        return unwanted

    def opened(self, mirror: int, *, keeps: set[tuple[str, bytes]]) -> None:
        """A mirror has told all and serves. What no mirror has any more is taken out, but for `keeps`: it is being written."""
        self._removed_meanwhile.pop(mirror, None)
        self.serving |= 1 << mirror
        entries = list(self.index.all_entries())
        orphans = [e for e in entries if not e.mirrors and (e.space, e.key) not in keeps]
        for entry in orphans:
            self.index.remove(entry)
        self.look_at(orphans)
        self._unlooked = self.index.all_entries()

    def dropped(self, mirror: int) -> None:
        """A mirror serves no more; what it has it may have again later."""
        self.serving &= ~(1 << mirror)
        self.closed_to(mirror)
        self._unlooked = self.index.all_entries()

    def count_of(self, mirror: int) -> int:
        """Return how many values a mirror has, as last counted; see `recount`."""
        return self._counted.get(mirror, 0)

    def recount(self, mirrors: int) -> None:
        """Count what each mirror has: some 20 ms for 100,000 values, so not with each heartbeat."""
        counted = dict.fromkeys(range(mirrors), 0)
        for entry in self.index.all_entries():
            for mirror in counted:
                counted[mirror] += entry.mirrors >> mirror & 1
        self._counted = counted

    def lacking(self, mirror: int) -> Iterator[Entry]:
        """Return what other serving mirrors have and this one has not."""
        bit = 1 << mirror
        others = self.serving & ~bit
        for entry in self.index.all_entries():
            if entry.mirrors & others and not entry.mirrors & bit:
                yield entry
