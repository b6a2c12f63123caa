"""What a store does beside its engines' work: reads everything and checks it, purges, gives disks back what they need not hold."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from services.kvstore import orders
from services.kvstore.index import Entry
from services.kvstore.mirror import Mirror
from services.kvstore.rebuild import ask
from services.kvstore.store import Store
from shared.clock import Clock
from shared.messages import KvPurge, KvPurged, KvVerified

BATCH_BYTES = 16 << 20
BATCH_VALUES = 256
BUSY_S = 0.02
LOOK_S = 10.0
COMPACT_S = 600.0
WASTE_FACTOR = 2.0
WASTE_BYTES = 64 << 20
"""A file is written anew when it is twice what lives in it, and this much more."""


class Upkeep:
    """One of each at a time."""

    def __init__(self, store: Store, *, read_s: float, clock: Clock, wall: Clock) -> None:
        self._store = store
        self._read_s = read_s
        self._clock = clock
        self._wall = wall
        self._begun = asyncio.Event()
        self._in_vain: dict[tuple[int, str], int] = {}
        """Files that could not be written anew, for want of room, and their size then."""
        self._verified = KvVerified(running=False, checked=0, total=0, bad=0)

    async def run(self) -> None:
        """Verify when asked and compact where it pays, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._verify_forever(), name="kv store verify")
            group.create_task(self._compact_forever(), name="kv store compact")

    # --- verify

    def verify(self, *, begin: bool) -> KvVerified:
        """Begin where asked and none runs; return how far it is."""
        if begin and not self._begun.is_set():
            self._verified = KvVerified(running=True, checked=0, total=0, bad=0)
            self._begun.set()
        return self._verified

    async def _verify_forever(self) -> None:
        while True:
            await self._begun.wait()
            await self._verify()
            self._begun.clear()

    async def _verify(self) -> None:
        began_at = self._clock()
        store = self._store
        mirrors = [mirror for mirror in store.mirrors if mirror.serves]
        entries = list(store.catalogue.index.all_entries())
        total = sum((entry.mirrors & mirror.bit) > 0 for mirror in mirrors for entry in entries)
        checked = bad = 0
        for mirror in mirrors:
            for batch in self._batches([e for e in entries if e.mirrors & mirror.bit]):
                await self._wait_for_room(mirror)
                if not mirror.serves:
                    break
                bad += await self._check(mirror, batch)
                checked += len(batch)
                self._verified = KvVerified(
                    running=True,
                    checked=checked,
                    total=total,
                    bad=bad,
                    seconds=self._clock() - began_at,
                )
        self._verified = KvVerified(
            running=False, checked=checked, total=total, bad=bad, seconds=self._clock() - began_at
        )

    async def _wait_for_room(self, mirror: Mirror) -> None:
        while self._store.is_busy or (mirror.serves and not mirror.has_room_to_read):  # noqa: ASYNC110 - two conditions of others
            await asyncio.sleep(BUSY_S)

    def _batches(self, entries: list[Entry]) -> Iterator[list[Entry]]:
        """Cut entries into lists of one namespace and a bounded size."""
        entries.sort(key=lambda entry: entry.space)
        batch: list[Entry] = []
        for entry in entries:
            is_full = len(batch) >= BATCH_VALUES or len(batch) * entry.charged >= BATCH_BYTES
            if batch and (is_full or batch[0].space != entry.space):
                yield batch
                batch = []
            batch.append(entry)
        if batch:
            yield batch

    async def _check(self, mirror: Mirror, batch: list[Entry]) -> int:
        here = [entry for entry in batch if entry.is_here and entry.mirrors & mirror.bit]
        if not here:
            return 0
        space = here[0].space
        order = orders.Check(
            task=mirror.new_task(),
            space=space,
            value_bytes=self._store.catalogue.facts[space].value_bytes,
            values=[orders.Value(entry.key, entry.generation, 0) for entry in here],
        )
        ended = await ask(mirror, order, sum(entry.charged for entry in here), self._read_s * 4)
        if ended is None:
            return 0
        wrong = [here[i] for i in (*ended.missing, *ended.bad) if here[i].is_here]
        self._store.transfers.lost_by(mirror, wrong)
        self._store.counts.corrupt += len(ended.bad)
        return len(wrong)

    # --- purge

    def purge(self, purge: KvPurge) -> KvPurged:
        """Delete what fits all that is given."""
        catalogue = self._store.catalogue
        before = self._wall() - purge.older_than_s
        gone: list[Entry] = []
        for space in catalogue.index.spaces():
            services = catalogue.facts[space].told.get("service", "").split(",")
            if purge.namespace and not space.startswith(purge.namespace):
                continue
            if purge.service and purge.service not in services:
                continue
            gone += [e for e in catalogue.index.entries(space) if e.last <= before]
        used = sum(entry.charged for entry in gone)
        self._store.purge(gone)
        away = sum(not mirror.serves for mirror in self._store.mirrors)
        return KvPurged(values=len(gone), used_bytes=used, away=away)

    # --- disks

    async def _compact_forever(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for mirror in self._store.mirrors:
                await self.compact(mirror)

    async def compact(self, mirror: Mirror) -> None:
        """Have files written anew, or deleted, that hold much more than what lives in them; only while nobody saves."""
        catalogue = self._store.catalogue
        for space, file_bytes in list(mirror.sizes.file_bytes.items()):
            if self._store.is_busy or not mirror.writes or mirror.is_writing:
                return
            live = sum(entry.charged for entry in catalogue.index.entries(space))
            if not live and not self._store.sessions.of_space(space):
                mirror.tell(orders.Forget(space=space))
            elif file_bytes > WASTE_FACTOR * live + WASTE_BYTES:
                await self._write_anew(mirror, space, file_bytes)

    async def _write_anew(self, mirror: Mirror, space: str, file_bytes: int) -> None:
        if self._in_vain.get((mirror.number, space), 0) >= file_bytes:
            return
        order = orders.Compact(task=mirror.new_task(), space=space)
        ended = await ask(mirror, order, 0, COMPACT_S)
        if ended is None or ended.missing:
            self._in_vain[(mirror.number, space)] = file_bytes
