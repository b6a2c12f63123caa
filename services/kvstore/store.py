"""The store without the bus: engines' jobs in, parts of them to mirrors, answers and news out.

Lives in one event loop; nothing in it waits.
A load that a mirror cannot serve goes to another one, or is a miss; a save is kept when one mirror has committed it.
No trouble of a disk is ever an error of a job: only values that are missing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path

from typing_extensions import override

from services.kvstore import orders
from services.kvstore.catalogue import Catalogue, SpaceFacts
from services.kvstore.counts import StoreCounts
from services.kvstore.fairness import FairQueue, Kind
from services.kvstore.index import Entry, by_space
from services.kvstore.lifecycle import SERVING, MirrorState
from services.kvstore.mirror import Mirror, Rules, Task
from services.kvstore.rates import Choice, choose
from services.kvstore.rebuild import REGION, Rebuilder
from services.kvstore.sessions import Session, Sessions, send_life_lines
from services.kvstore.settings import KvStoreSettings
from services.kvstore.work import Bite, Job, cut, packets
from shared.clock import loop_clock, wall_time_s
from shared.kv.protocol import Done, Hello, Load, Save, Touch
from shared.kv.seqpacket import close_all

TICK_S = 0.02
NOTE_S = 5.0
NOTES_AT_ONCE = 2000
NOBODY = "no mirror serves"


class Store:
    """All of it. `open`, then `run` until cancelled, then `close`."""

    def __init__(self, settings: KvStoreSettings, *, name: str) -> None:
        self._settings = settings
        self._clock = loop_clock()
        self.counts = StoreCounts()
        self.catalogue = Catalogue(
            budget_bytes=settings.budget_bytes, correlated_s=settings.correlated_s
        )
        self.queue: FairQueue[Bite] = FairQueue(
            max_load_bytes=settings.queue.load_bytes, max_save_bytes=settings.queue.save_bytes
        )
        rules = Rules(
            budget_bytes=settings.budget_bytes, deadlines=settings.deadline, parent=os.getpid()
        )
        self.mirrors = [
            Mirror(number, folder, owner=self, rules=rules, clock=self._clock)
            for number, folder in enumerate(settings.folders)
        ]
        self.sessions = Sessions(
            Path(settings.socket), self, store=name, max_engines=settings.max_engines
        )
        self.rebuilder = Rebuilder(
            self.catalogue,
            settings=settings.rebuild,
            deadlines=settings.deadline,
            is_busy=lambda: bool(self.queue.waiting(Kind.LOAD) or self.queue.waiting(Kind.SAVE)),
            wall=wall_time_s,
        )
        self.changed = asyncio.Event()
        """Set when a mirror comes or goes."""
        self._writing: set[tuple[str, bytes]] = set()
        self._generation = int(wall_time_s() * 1e6)
        self._turn = 0
        self._is_news_due = False
        self._is_looking = False
        self._note_at = self._clock() + NOTE_S

    @override
    def __repr__(self) -> str:
        return f"<Store {len(self.catalogue.index)} values, {len(self.sessions.all)} engines, {self.mirrors}>"

    # --- life

    def open(self) -> None:
        """Listen and start the mirrors. Raises `OSError`."""
        self.sessions.open(asyncio.get_running_loop().add_reader)
        for mirror in self.mirrors:
            mirror.tick()

    async def run(self) -> None:
        """Watch over the mirrors, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tick_forever(), name="kv store tick")
            group.create_task(self._rebuild_forever(), name="kv store rebuild")

    async def close(self, *, drain_s: float) -> None:
        """Take no more jobs, note what was used, let the mirrors sync and end; those that do not in time are killed."""
        self.sessions.close(asyncio.get_running_loop().remove_reader)
        while self._note():
            pass
        for mirror in self.mirrors:
            mirror.stop()
        ends_at = self._clock() + drain_s
        while any(m.pid for m in self.mirrors) and self._clock() < ends_at:
            await asyncio.sleep(TICK_S)
            for mirror in self.mirrors:
                mirror.look()
        for mirror in self.mirrors:
            mirror.kill()
            mirror.look()
        self.rebuilder.close()

    async def _tick_forever(self) -> None:
        while True:
            for mirror in self.mirrors:
                mirror.tick()
            if self._clock() >= self._note_at:
                self._note_at = self._clock() + NOTE_S
                self._note()
            self._pump()
            ends_soon = any(m.state is MirrorState.ENDING for m in self.mirrors)
            await asyncio.sleep(TICK_S / 10 if ends_soon else TICK_S)

    async def _rebuild_forever(self) -> None:
        while True:
            for mirror in self.mirrors:
                if mirror.state is MirrorState.REBUILDING:
                    others = [m for m in self.mirrors if m is not mirror]
                    await self.rebuilder.complete(mirror, others)
            await asyncio.sleep(TICK_S)

    def _note(self) -> bool:
        """Tell the mirrors what was used; return whether there was anything."""
        noted = self.catalogue.index.take_unnoted(NOTES_AT_ONCE)
        for space, entries in by_space(noted).items():
            rows = b"".join(orders.ROW.pack(e.generation, e.last, e.prior) for e in entries)
            note = orders.Note(space=space, keys=[e.key for e in entries], rows=rows)
            for mirror in self._writers():
                mirror.tell(note)
        return bool(noted)

    # --- engines (what `Sessions` asks)

    def refuse(self, hello: Hello) -> str:
        """Return why this engine cannot be served."""
        facts = self.catalogue.facts.get(hello.namespace)
        if facts is not None and facts.value_bytes != hello.value_bytes:
            return f"the namespace has values of {facts.value_bytes} bytes, not {hello.value_bytes}"
        return ""

    def welcome(self, session: Session) -> list[int]:
        """Let the mirrors know the region; all keys follow the welcome."""
        assert session.hello is not None
        facts = SpaceFacts(value_bytes=session.hello.value_bytes, told=session.hello.told)
        self.catalogue.facts[session.space] = facts
        asyncio.get_running_loop().call_soon(self._tell_all, session)
        lines = [m.attach(session.number, session.region_fd) for m in self.mirrors if m.serves]
        return [line for line in lines if line is not None]

    def _tell_all(self, session: Session) -> None:
        if session.number in self.sessions.all:
            self._send_news()  # what is news to the others is part of all
            session.tell(self.catalogue.loadable(session.space), [])

    def ask(self, session: Session, message: Load | Save | Touch) -> None:
        """Take a job, or a use."""
        now = wall_time_s()
        catalogue = self.catalogue
        if isinstance(message, Touch):
            for key in message.keys:
                if (entry := catalogue.index.get(session.space, key)) is not None:
                    catalogue.index.use(entry, now)
            return
        kind = Kind.LOAD if isinstance(message, Load) else Kind.SAVE
        job = Job(message.job, kind, message.keys, message.slots, now=self._clock())
        session.jobs[job.number] = job
        wanted: list[int] = []
        for position, key in enumerate(message.keys):
            entry = catalogue.index.get(session.space, key)
            if entry is not None:
                catalogue.index.use(entry, now)
            if (entry is None) is (kind is Kind.SAVE):
                wanted.append(position)
            elif kind is Kind.LOAD:
                job.miss([position], "not stored")
        self.counts.asked(kind, len(message.keys), len(wanted))
        self._enqueue(session, job, wanted)
        self._pump()

    def _enqueue(self, session: Session, job: Job, wanted: list[int]) -> None:
        assert session.hello is not None
        size = session.hello.value_bytes
        job.left = 1
        for positions in cut(wanted, value_bytes=size, bite_bytes=self._settings.queue.bite_bytes):
            bite = Bite(session.number, job, positions)
            if self.queue.offer(session.number, job.kind, bite, len(positions) * size):
                job.left += 1
            else:
                job.miss(positions, "the queue is full")
                self.counts.full[job.kind] += len(positions)
        self._part_ended(session.number, job)

    def left(self, session: Session) -> None:
        """Forget the engine; its parts under way end by themselves, and then its region is let go of."""
        self.queue.drop(session.number)
        for mirror in self.mirrors:
            mirror.detach(session.number)

    def _part_ended(self, number: int, job: Job) -> None:
        job.left -= 1
        if job.left:
            return
        session = self.sessions.all.get(number)
        if session is None:
            return
        done = job.done(self._clock())
        del session.jobs[job.number]
        self._tell_done(session, job, done)

    def _tell_done(self, session: Session, job: Job, done: Done) -> None:
        assert session.hello is not None
        assert session.link is not None
        good = len(job.keys) - len(done.missing)
        self.counts.ended(job.kind, good, good * session.hello.value_bytes, done)
        session.link.send(done, urgent=True)

    # --- parts

    def _pump(self) -> None:
        """Give mirrors what they have room for."""
        while True:
            writers = self._writers()
            saves = all(m.has_room_to_write for m in writers)
            serving = [m for m in self.mirrors if m.serves]
            loads = not serving or any(m.has_room_to_read for m in serving)
            taken = self.queue.take(loads=loads, saves=saves)
            if taken is None:
                break
            kind, bite = taken
            bite.job.begin(self._clock())
            session = self.sessions.all.get(bite.engine)
            if session is None:
                continue
            if kind is Kind.LOAD:
                self._load(session, bite.job, bite.positions)
                self._part_ended(session.number, bite.job)
            else:
                self._save(session, bite, writers)
        self._news_soon()

    def _writers(self) -> list[Mirror]:
        return [mirror for mirror in self.mirrors if mirror.writes]

    def _load(self, session: Session, job: Job, positions: Iterable[int]) -> None:
        """Have values read, each by the best of the mirrors that have it; each read is one more part of the job."""
        groups: dict[int, list[tuple[int, Entry]]] = {}
        missing: list[int] = []
        for position in positions:
            entry = self.catalogue.can_load(session.space, job.keys[position])
            if entry is None:
                missing.append(position)
            else:
                mask = entry.mirrors & self.catalogue.serving
                groups.setdefault(mask, []).append((position, entry))
        job.miss(missing, "no mirror has it")
        for mask, found in groups.items():
            self._read(session, job, mask, found)

    def _read(self, session: Session, job: Job, mask: int, found: list[tuple[int, Entry]]) -> None:
        assert session.hello is not None
        value_bytes = session.hello.value_bytes
        size = len(found) * value_bytes
        choices = [
            Choice(m.number, m.read_rate.bytes_per_s, m.waiting_bytes)
            for m in self.mirrors
            if m.bit & mask
        ]
        self._turn += 1
        mirror = self.mirrors[choose(choices, size, turn=self._turn)]
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
            self.counts.rerouted += len(again)
        else:
            job.miss([found[i][0] for i in ended.refused], "the region did not take it")
            self.counts.corrupt += len(ended.bad)
            wrong = [found[i] for i in (*ended.missing, *ended.bad)]
            self._lost_by(mirror, [entry for _, entry in wrong])
            again = [position for position, _ in wrong]
        if again and session.number in self.sessions.all:
            self._load(session, job, again)
        self._part_ended(session.number, job)
        self._pump()

    def _lost_by(self, mirror: Mirror, entries: list[Entry]) -> None:
        """A mirror does not have these, or not as they were; what no mirror has is no entry any more."""
        for entry in entries:
            entry.mirrors &= ~mirror.bit
        self.catalogue.look_at(entries)
        self._remove([e for e in entries if not e.mirrors])
        if any(e.is_here for e in entries):
            mirror.behind()

    def _remove(self, entries: list[Entry]) -> None:
        gone = [e for e in entries if (e.space, e.key) not in self._writing]
        self.catalogue.remove(gone)

    # --- saves

    def _save(self, session: Session, bite: Bite, writers: list[Mirror]) -> None:
        assert session.hello is not None
        job, space = bite.job, session.space
        charged = self.catalogue.charged(space)
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
                if self.catalogue.index.get(space, key) is not None:
                    continue  # another job has saved it meanwhile
                evicted += self.catalogue.make_room(charged)
                self._generation += 1
                entry = self.catalogue.index.add(
                    space, key, charged=charged, generation=self._generation, now=now
                )
                found.append((position, entry))
        if found:
            self.counts.evicted += len(evicted)
            self._write(session, job, found, writers, evicted)
        self._part_ended(session.number, job)

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
            self._delete(space, [e.key for e in entries])
        values = [orders.Value(e.key, e.generation, job.slots[p] * value_bytes) for p, e in found]
        self._writing.update((e.space, e.key) for _, e in found)
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
        self.catalogue.look_at([entry for entry in kept if entry.is_here])
        self._news_soon()
        if missing:
            mirror.behind()

    def _save_ended(self, session: Session, job: Job, found: list[tuple[int, Entry]]) -> None:
        self._writing.difference_update((e.space, e.key) for _, e in found)
        lost = [(p, e) for p, e in found if not e.mirrors]
        self.catalogue.remove([e for _, e in lost])
        job.miss([p for p, _ in lost], "not written")
        self._part_ended(session.number, job)
        self._pump()

    def _delete(self, space: str, keys: list[bytes]) -> None:
        for mirror in self._writers():
            for part in packets(keys):
                mirror.tell(orders.Delete(space=space, keys=part))

    # --- mirrors (what `Mirror` tells)

    def on_state(self, mirror: Mirror) -> None:
        """Follow a mirror's coming and going."""
        if mirror.state is MirrorState.OPENING:
            self.catalogue.begins(mirror.number)
        elif mirror.state is MirrorState.REBUILDING and not self._is_serving(mirror):
            self.catalogue.opened(mirror.number, keeps=self._writing)
            for space, entries in by_space(self.catalogue.make_room(0)).items():
                self._delete(space, [e.key for e in entries])
        elif mirror.state not in SERVING and self._is_serving(mirror):
            self.catalogue.dropped(mirror.number)
        self.changed.set()
        self._news_soon()
        asyncio.get_running_loop().call_soon(self._pump)

    def _is_serving(self, mirror: Mirror) -> bool:
        return bool(self.catalogue.serving & mirror.bit)

    def on_listed(self, mirror: Mirror, listed: orders.Listed) -> None:
        """Take in what a mirror has."""
        rows = [
            (key, *row)
            for key, row in zip(listed.keys, orders.ROW.iter_unpack(listed.rows), strict=True)
        ]
        unwanted = self.catalogue.has(mirror.number, listed.space, listed.value_bytes, rows)
        facts = self.catalogue.facts[listed.space]
        if not facts.told:
            facts.told = listed.told
        for part in packets(unwanted):
            mirror.tell(orders.Delete(space=listed.space, keys=part))

    def attach_all(self, mirror: Mirror) -> None:
        """Give a new process the regions of all engines, and the engines its life lines."""
        line = mirror.attach(REGION, self.rebuilder.fd)
        close_all([line] if line is not None else [])
        for session in self.sessions.all.values():
            if session.hello is not None:
                line = mirror.attach(session.number, session.region_fd)
                send_life_lines(session, [line] if line is not None else [])

    # --- news

    def _news_soon(self) -> None:
        """Tell engines what has changed, in this turn of the loop: many changes are one message."""
        if not self._is_news_due:
            self._is_news_due = True
            asyncio.get_running_loop().call_soon(self._send_news)

    def _send_news(self) -> None:
        self._is_news_due = False
        if self.catalogue.look_further():
            self._news_soon()
        for space, gained, lost in self.catalogue.take_news():
            for session in self.sessions.of_space(space):
                session.tell(gained, lost)
