"""Parts of jobs at the mirrors: a load goes to the best mirror that has its values, a save to all that take one.

What one mirror cannot give is asked of the other; what none gives is missing. A key is loadable as soon as one mirror has committed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from services.kvstore import orders
from services.kvstore.catalogue import Catalogue
from services.kvstore.counts import StoreCounts
from services.kvstore.index import Entry, by_space
from services.kvstore.mirror import Mirror
from services.kvstore.rates import Choice, choose
from services.kvstore.sessions import Session
from services.kvstore.settings import KvStoreSettings
from services.kvstore.tasks import Task
from services.kvstore.work import Bite, Job, packets
from shared.clock import wall_time_s

NOBODY = "no mirror takes it"


class Told(msgspec.Struct, frozen=True):
    """Whom transfers tell."""

    part_ended: Callable[[Session, Job], None]
    room: Callable[[], None]
    """A mirror has room again."""
    news: Callable[[], None]
    """Something may be loadable, or not any more."""


class Transfers:
    """All that is under way between regions and mirrors."""

    def __init__(
        self,
        settings: KvStoreSettings,
        *,
        catalogue: Catalogue,
        mirrors: list[Mirror],
        counts: StoreCounts,
        told: Told,
    ) -> None:
        self.writing: set[tuple[str, bytes]] = set()
        """What is being written: no mirror has it yet, and it is no mistake."""
        self._settings = settings
        self._catalogue = catalogue
        self._mirrors = mirrors
        self._counts = counts
        self._part_ended = told.part_ended
        self._pump = told.room
        self._news = told.news
        self._generation = int(wall_time_s() * 1e6)
        self._turn = 0

    def writers(self) -> list[Mirror]:
        """Return the mirrors that take what is saved."""
        return [mirror for mirror in self._mirrors if mirror.writes]

    # --- loads

    def load(self, session: Session, job: Job, positions: Iterable[int]) -> None:
        """Have values read, each by the best of the mirrors that have it; each read is one more part of the job."""
        groups: dict[int, list[tuple[int, Entry]]] = {}
        missing: list[int] = []
        for position in positions:
            entry = self._catalogue.can_load(session.space, job.keys[position])
            if entry is None:
                missing.append(position)
            else:
                mask = entry.mirrors & self._catalogue.serving
                groups.setdefault(mask, []).append((position, entry))
        job.miss(missing, "no mirror has it")
        for mask, found in groups.items():
            self._read(session, job, mask, found)

    def _read(self, session: Session, job: Job, mask: int, found: list[tuple[int, Entry]]) -> None:
        assert session.hello is not None
        value_bytes = session.hello.value_bytes
        size = len(found) * value_bytes
        choices = [
            Choice(m.number, m.read.bytes_per_s, m.waiting_bytes)
            for m in self._mirrors
            if m.bit & mask
        ]
        self._turn += 1
        mirror = self._mirrors[choose(choices, size, turn=self._turn)]
        order = orders.Read(
            task=mirror.new_task(),
            space=session.space,
            value_bytes=value_bytes,
            region=session.number,
            values=[
                orders.Value(e.key, e.generation, job.slots[p] * value_bytes) for p, e in found
            ],
        )

        def done(ended: orders.Ended | None) -> None:
            self._read_ended(session, job, mirror, found, ended)

        job.left += 1
        deadline_s = self._settings.deadline.read_s
        mirror.begin(Task(order=order, size=size, done=done, deadline_s=deadline_s))

    def _read_ended(
        self,
        session: Session,
        job: Job,
        mirror: Mirror,
        found: list[tuple[int, Entry]],
        ended: orders.Ended | None,
    ) -> None:
        """Try elsewhere what this mirror could not give."""
        again: list[int] = []
        if ended is None:
            again = [position for position, _ in found]
            self._counts.rerouted += len(again)
        else:
            job.miss([found[i][0] for i in ended.refused], "the region did not take it")
            self._counts.corrupt += len(ended.bad)
            wrong = [found[i] for i in (*ended.missing, *ended.bad)]
            self.lost_by(mirror, [entry for _, entry in wrong])
            again = [position for position, _ in wrong]
        if again and session.is_open:
            self.load(session, job, again)
        self._part_ended(session, job)
        self._pump()

    def lost_by(self, mirror: Mirror, entries: list[Entry]) -> None:
        """A mirror does not have these, or not as they were; what no mirror has is no entry any more."""
        for entry in entries:
            entry.mirrors &= ~mirror.bit
        self._catalogue.look_at(entries)
        self.remove([e for e in entries if not e.mirrors])
        if any(e.is_here for e in entries):
            mirror.behind()

    def remove(self, entries: list[Entry]) -> None:
        gone = [e for e in entries if (e.space, e.key) not in self.writing]
        self._catalogue.remove(gone)

    # --- saves

    def save(self, session: Session, bite: Bite, writers: list[Mirror]) -> None:
        assert session.hello is not None
        job, space = bite.job, session.space
        charged = self._catalogue.charged(space)
        found: list[tuple[int, Entry]] = []
        evicted: list[Entry] = []
        if not writers:
            job.miss(bite.positions, NOBODY)
        elif charged > self._settings.budget_bytes:
            job.miss(bite.positions, "a value is larger than the budget")
        else:
            now = wall_time_s()
            for position in bite.positions:
                key = job.keys[position]
                if self._catalogue.index.get(space, key) is not None:
                    continue  # another job has saved it meanwhile
                evicted += self._catalogue.make_room(charged)
                self._generation += 1
                entry = self._catalogue.index.add(
                    space, key, charged=charged, generation=self._generation, now=now
                )
                found.append((position, entry))
        if found:
            self._counts.evicted += len(evicted)
            self._write(session, job, found, writers, evicted)
        self._part_ended(session, job)

    def _write(
        self,
        session: Session,
        job: Job,
        found: list[tuple[int, Entry]],
        writers: list[Mirror],
        evicted: list[Entry],
    ) -> None:
        assert session.hello is not None
        value_bytes = session.hello.value_bytes
        drop = by_space(evicted)
        here = [e.key for e in drop.pop(session.space, [])]
        for space, entries in drop.items():
            self.delete(space, [e.key for e in entries])
        values = [orders.Value(e.key, e.generation, job.slots[p] * value_bytes) for p, e in found]
        self.writing.update((e.space, e.key) for _, e in found)
        waiting = set(writers)
        job.left += 1

        def done(mirror: Mirror, ended: orders.Ended | None) -> None:
            waiting.discard(mirror)
            self._written(mirror, [e for _, e in found], ended)
            if not waiting:
                self._save_ended(session, job, found)

        for mirror in writers:
            order = orders.Write(
                task=mirror.new_task(),
                space=session.space,
                value_bytes=value_bytes,
                region=session.number,
                values=values,
                now=found[0][1].last,
                drop=here,
                told=session.hello.told,
            )
            task = Task(
                order=order,
                size=len(found) * value_bytes,
                done=lambda ended, mirror=mirror: done(mirror, ended),  # type: ignore[misc]
                deadline_s=self._settings.deadline.write_s,
            )
            mirror.begin(task)

    def _written(self, mirror: Mirror, entries: list[Entry], ended: orders.Ended | None) -> None:
        """A mirror has committed values, or has not; what was evicted meanwhile goes from it again."""
        if ended is None:
            return
        missing = set(ended.missing)
        kept = [entry for i, entry in enumerate(entries) if i not in missing]
        for entry in kept:
            entry.mirrors |= mirror.bit
        gone = [entry for entry in kept if not entry.is_here]
        for space, those in by_space(gone).items():
            mirror.tell(orders.Delete(space=space, keys=[e.key for e in those]))
        self._catalogue.look_at([entry for entry in kept if entry.is_here])
        self._news()
        if missing:
            mirror.behind()

    def _save_ended(self, session: Session, job: Job, found: list[tuple[int, Entry]]) -> None:
        self.writing.difference_update((e.space, e.key) for _, e in found)
        lost = [(p, e) for p, e in found if not e.mirrors]
        self._catalogue.remove([e for _, e in lost])
        job.miss([p for p, _ in lost], "not written")
        self._part_ended(session, job)
        self._pump()

    def delete(self, space: str, keys: list[bytes]) -> None:
        for mirror in self.writers():
            for part in packets(keys):
                mirror.tell(orders.Delete(space=space, keys=part))
