"""Gives a mirror what the other one has and it has not: after it was away, emptied, or missed a write. Slowly; engines come first."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from itertools import islice

from services.kvstore import orders
from services.kvstore.catalogue import Catalogue
from services.kvstore.index import Entry
from services.kvstore.mirror import Mirror
from services.kvstore.settings import DeadlineSettings, RebuildSettings
from services.kvstore.tasks import Task
from shared.clock import Clock

REGION = 0
BATCH_BYTES = 8 << 20
BATCH_VALUES = 64
BUSY_S = 0.02
PASS_VALUES = 100_000
"""Values that are looked up at once; more in the next pass."""


class Rebuilder:
    """Copies through a region of the store's own, by the same reads and writes that engines cause."""

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        settings: RebuildSettings,
        deadlines: DeadlineSettings,
        is_busy: Callable[[], bool],
        wall: Clock,
    ) -> None:
        self.copied = 0
        self._catalogue = catalogue
        self._settings = settings
        self._deadlines = deadlines
        self._is_busy = is_busy
        self._wall = wall
        self._room = BATCH_BYTES
        self.fd = os.memfd_create("headrace-kv-rebuild")
        os.ftruncate(self.fd, self._room)

    def close(self) -> None:
        """Give the region back."""
        os.close(self.fd)

    async def complete(self, mirror: Mirror, others: list[Mirror]) -> None:
        """Bring a mirror up to the others, as long as it serves and the others do."""
        while mirror.serves:
            if not mirror.writes:
                mirror.complete()
                return
            lacking = list(islice(self._catalogue.lacking(mirror.number), PASS_VALUES))
            if not lacking:
                mirror.complete()
                return
            if not await self._copy_all(mirror, others, lacking):
                await asyncio.sleep(1.0)

    async def _copy_all(self, mirror: Mirror, others: list[Mirror], lacking: list[Entry]) -> bool:
        """Copy what is lacking; return whether anything could be."""
        copied = 0
        by_source: dict[tuple[int, str], list[Entry]] = {}
        for entry in lacking:
            source = next((m for m in others if m.serves and m.bit & entry.mirrors), None)
            if source is not None:
                by_source.setdefault((source.number, entry.space), []).append(entry)
        for (number, space), entries in by_source.items():
            source = next(m for m in others if m.number == number)
            size = self._catalogue.facts[space].value_bytes
            step = max(1, min(BATCH_VALUES, BATCH_BYTES // size))
            for at in range(0, len(entries), step):
                copied += await self._copy(source, mirror, entries[at : at + step], size)
        return copied > 0

    async def _copy(self, source: Mirror, target: Mirror, batch: list[Entry], size: int) -> int:
        """Copy some values; return how many could be."""
        while self._is_busy() or not target.has_room_to_write or not source.has_room_to_read:
            if not (source.serves and target.serves):
                return 0
            await asyncio.sleep(BUSY_S)
        batch = [entry for entry in batch if entry.is_here and not entry.mirrors & target.bit]
        await asyncio.sleep(len(batch) * size / self._settings.bytes_per_s)
        if not (batch and source.serves and target.writes):
            return 0
        if len(batch) * size > self._room:
            self._room = len(batch) * size
            os.ftruncate(self.fd, self._room)
        values = [orders.Value(e.key, e.generation, i * size) for i, e in enumerate(batch)]
        good = await self._read(source, batch, values, size)
        if not (good and target.writes):
            return 0
        space = batch[0].space
        write = orders.Write(
            task=target.new_task(),
            space=space,
            value_bytes=size,
            region=REGION,
            values=[values[i] for i in good],
            now=self._wall(),
            told=self._catalogue.facts[space].told,
        )
        written = await ask(target, write, len(good) * size, self._deadlines.write_s)
        if written is None:
            return 0
        self._settle(target, [batch[i] for i in good], set(written.missing))
        return len(good) - len(written.missing)

    async def _read(
        self, source: Mirror, batch: list[Entry], values: list[orders.Value], size: int
    ) -> list[int]:
        """Copy values from the source into the region; return the positions of those that are there now."""
        order = orders.Read(
            task=source.new_task(),
            space=batch[0].space,
            value_bytes=size,
            region=REGION,
            values=values,
        )
        ended = await ask(source, order, len(batch) * size, self._deadlines.read_s)
        if ended is None:
            return []
        wrong = {*ended.missing, *ended.bad}
        for position in wrong:
            batch[position].mirrors &= ~source.bit
        self._catalogue.look_at(batch)
        wrong.update(ended.refused)
        return [i for i, entry in enumerate(batch) if i not in wrong and entry.is_here]

    def _settle(self, target: Mirror, batch: list[Entry], missing: set[int]) -> None:
        """Note what the mirror has now, and its history there; what was evicted meanwhile goes from it."""
        kept = [entry for i, entry in enumerate(batch) if i not in missing]
        here = [entry for entry in kept if entry.is_here]
        gone = [entry.key for entry in kept if not entry.is_here]
        space = batch[0].space
        for entry in here:
            entry.mirrors |= target.bit
        if gone:
            target.tell(orders.Delete(space=space, keys=gone))
        if here:
            rows = b"".join(orders.ROW.pack(e.generation, e.last, e.prior) for e in here)
            target.tell(orders.Note(space=space, keys=[e.key for e in here], rows=rows))
        self.copied += len(here)
        self._catalogue.look_at(here)


async def ask(
    mirror: Mirror,
    order: orders.Read | orders.Write | orders.Check | orders.Compact,
    size: int,
    deadline_s: float,
) -> orders.Ended | None:
    """Give a task and wait for its end, which comes: the mirror answers, or is killed at the deadline."""
    answer: asyncio.Future[orders.Ended | None] = asyncio.get_running_loop().create_future()

    def done(ended: orders.Ended | None) -> None:
        if not answer.done():
            answer.set_result(ended)

    mirror.begin(Task(order=order, size=size, done=done, deadline_s=deadline_s))
    return await answer
