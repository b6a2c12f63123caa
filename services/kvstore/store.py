"""The store without the bus: engines' jobs in, parts of them to mirrors, answers and news out.

Lives in one event loop; nothing in it waits.
A load that a mirror cannot serve goes to another one, or is a miss; a save is kept when one mirror has committed it.
No trouble of a disk is ever an error of a job: only values that are missing.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from typing_extensions import override

from services.kvstore import orders
from services.kvstore.catalogue import Catalogue, SpaceFacts
from services.kvstore.counts import StoreCounts
from services.kvstore.fairness import FairQueue, Kind
from services.kvstore.index import Entry, by_space
from services.kvstore.lifecycle import SERVING, MirrorState
from services.kvstore.mirror import Mirror
from services.kvstore.ports import Rules
from services.kvstore.rebuild import REGION, Rebuilder
from services.kvstore.sessions import Session, Sessions, send_life_lines
from services.kvstore.settings import KvStoreSettings
from services.kvstore.transfers import Told, Transfers
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
            is_busy=lambda: self.is_busy,
            wall=wall_time_s,
        )
        self.changed = asyncio.Event()
        """Set when a mirror comes or goes."""
        self.transfers = Transfers(
            settings,
            catalogue=self.catalogue,
            mirrors=self.mirrors,
            counts=self.counts,
            told=Told(self._part_ended, self._pump, self._news_soon),
        )
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
                self.catalogue.recount(len(self.mirrors))
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
            for mirror in self.transfers.writers():
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
        self._part_ended(session, job)

    def left(self, session: Session) -> None:
        """Forget the engine; its parts under way end by themselves, and then its region is let go of."""
        self.queue.drop(session.number)
        for mirror in self.mirrors:
            mirror.detach(session.number)

    def _part_ended(self, session: Session, job: Job) -> None:
        job.left -= 1
        if job.left or not session.is_open:
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
            writers = self.transfers.writers()
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
                self.transfers.load(session, bite.job, bite.positions)
                self._part_ended(session, bite.job)
            else:
                self.transfers.save(session, bite, writers)
        self._news_soon()

    def purge(self, entries: list[Entry]) -> None:
        """Delete values, here and on the mirrors."""
        self.transfers.remove(entries)
        for space, gone in by_space(entries).items():
            self.transfers.delete(space, [entry.key for entry in gone if not entry.is_here])
        self._news_soon()

    @property
    def is_busy(self) -> bool:
        """Return whether engines wait for mirrors."""
        return bool(self.queue.waiting(Kind.LOAD) or self.queue.waiting(Kind.SAVE))

    # --- mirrors (what `Mirror` tells)

    def on_state(self, mirror: Mirror) -> None:
        """Follow a mirror's coming and going."""
        if mirror.state is MirrorState.OPENING:
            self.catalogue.begins(mirror.number)
        elif mirror.state is MirrorState.REBUILDING and not self._is_serving(mirror):
            self.catalogue.opened(mirror.number, keeps=self.transfers.writing)
            for other in self.mirrors:
                if other is not mirror and next(self.catalogue.lacking(other.number), None):
                    other.behind()  # this one has brought what that one never had
            for space, entries in by_space(self.catalogue.make_room(0)).items():
                self.transfers.delete(space, [e.key for e in entries])
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
