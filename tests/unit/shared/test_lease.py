"""At no time do two believe to hold a lease, whatever pauses and partitions come; epochs rise; somebody leads again soon."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.entry import Entry
from shared.lease import Lease
from shared.lease_term import LeaseTerm, Take, Wait
from shared.membus import Faults, MemoryBus, MemoryHub
from shared.messages import LeaseRecord
from shared.records import Records
from shared.vloop import run_virtual

TTL_S = 3.0
SUBJECT = "$KV.hr-leases.operator"
OTHER = LeaseRecord(role="operator", holder="b", epoch=9, ttl_s=TTL_S)


class Candidate:
    """One candidate of a simulation."""

    def __init__(self, name: str) -> None:
        self.term = LeaseTerm("role", name, ttl_s=TTL_S)
        self.turn = 0
        self.begun_s = 0.0
        self.next_s = 0.0
        self.paused_until_s = 0.0
        self.cut_until_s = 0.0


Due = tuple[float, Candidate, Callable[[], None], bool]
"""When, whose, what, and whether it happens at the server, where nobody stands still."""


class Simulation:
    """Three candidates and a server.

    Frames take up to 0.2 s, and now and then two ttl; while a candidate is cut off they are lost, and its turn ends without an answer.
    Processes stand still, and are cut off, for up to three ttl at any moment.
    """

    def __init__(self, seed: int) -> None:
        self.candidates = [Candidate(name) for name in "abc"]
        self.epochs: list[int] = []
        self.now = 0.0
        self.obeyed = 0
        """Highest epoch that anybody acted with."""
        self.is_calm = False
        self._draw = random.Random(seed)
        self._state: Entry[LeaseRecord] | None = None
        self._revision = 0
        self._due: list[Due] = []

    def calm(self) -> None:
        """Let all run and reach each other from now on; what is under way may be lost."""
        self.is_calm = True
        self._due = [item for item in self._due if self._draw.random() < 0.5]
        for one in self.candidates:
            one.paused_until_s = one.cut_until_s = self.now

    def step(self) -> None:
        """Let a twentieth of a second pass."""
        self.now += 0.05
        for one in self.candidates:
            if self._happens(0.004):
                one.paused_until_s = self.now + self._draw.random() * 3 * TTL_S
            if self._happens(0.004):
                one.cut_until_s = self.now + self._draw.random() * 3 * TTL_S
            if one.paused_until_s <= self.now >= one.next_s:
                # It also comes here where no answer came until its deadline.
                one.turn += 1
                one.begun_s, one.next_s = self.now, self.now + one.term.term_s
                self._send(one, partial(self._read, one, one.turn))
        for item in [item for item in self._due if self._is_due(item)]:
            self._due.remove(item)
            item[2]()
        for holder in self.holders():
            self.obeyed = max(self.obeyed, holder.term.epoch)

    def holders(self) -> list[Candidate]:
        """Those that would act now: one that stands still does not, one that runs asks first."""
        return [
            one
            for one in self.candidates
            if one.term.holds(self.now) and one.paused_until_s <= self.now
        ]

    def _happens(self, ratio: float) -> bool:
        return not self.is_calm and self._draw.random() < ratio

    def _is_due(self, item: Due) -> bool:
        at_s, one, _, at_server = item
        return at_s <= self.now and (at_server or one.paused_until_s <= self.now)

    def _send(self, one: Candidate, what: Callable[[], None], *, at_server: bool = True) -> None:
        if one.cut_until_s <= self.now:
            slow_s = 2 * TTL_S if self._happens(0.02) else 0.2
            self._due.append((self.now + self._draw.random() * slow_s, one, what, at_server))

    def _read(self, one: Candidate, turn: int) -> None:
        self._send(one, partial(self._decide, one, turn, self._state), at_server=False)

    def _decide(self, one: Candidate, turn: int, state: Entry[LeaseRecord] | None) -> None:
        if turn != one.turn:
            return
        decision = one.term.decide(state, self.now, at_least=self.obeyed)
        if isinstance(decision, Wait):
            one.term.lost()
            one.next_s = self.now + min(decision.for_s, one.term.period_s)
        else:
            self._send(one, partial(self._write, one, turn, decision, self.now))

    def _write(self, one: Candidate, turn: int, wanted: Take, asked_s: float) -> None:
        fits = wanted.expected == (self._state.revision if self._state else 0)
        if fits:
            self._revision += 1
            if self._state is None or self._state.record.epoch != wanted.record.epoch:
                self.epochs.append(wanted.record.epoch)
            self._state = Entry(wanted.record, self._revision)
        record = wanted.record if fits else None
        self._send(one, partial(self._acked, one, turn, record, asked_s), at_server=False)

    def _acked(self, one: Candidate, turn: int, record: LeaseRecord | None, asked_s: float) -> None:
        if turn != one.turn:
            return
        if record is None:
            one.term.lost()
            one.next_s = self.now + one.term.period_s / 3
        else:
            one.term.written(record, asked_s=asked_s)
            one.next_s = one.begun_s + one.term.period_s


@given(st.integers(0, 1 << 32))
@settings(max_examples=150)
def test_never_two_hold_it_epochs_rise_and_somebody_leads_soon_after_the_last_fault(seed: int):
    simulation = Simulation(seed)
    for _ in range(600):
        simulation.step()
        assert len(simulation.holders()) <= 1
    simulation.calm()
    calm_s = simulation.now
    while simulation.now - calm_s < 6 * TTL_S:
        simulation.step()
        least = 1 if simulation.now - calm_s > 2 * TTL_S else 0
        assert least <= len(simulation.holders()) <= 1
    assert simulation.epochs == sorted(set(simulation.epochs))


@pytest.mark.parametrize(
    ("entry", "at_least", "epoch"),
    [
        (None, 0, 1),
        (None, 7, 8),
        (Entry(LeaseRecord(role="role", holder="", epoch=4, ttl_s=TTL_S), 9), 0, 5),
        (Entry(LeaseRecord(role="role", holder="", epoch=4, ttl_s=TTL_S), 9), 6, 7),
    ],
)
def test_a_free_lease_is_taken_with_an_epoch_above_all_that_were_obeyed(entry, at_least, epoch):
    decision = LeaseTerm("role", "a", ttl_s=TTL_S).decide(entry, 0.0, at_least=at_least)
    assert isinstance(decision, Take)
    assert decision.record.epoch == epoch
    assert decision.expected == (entry.revision if entry else 0)


def test_a_restarted_holder_with_its_old_name_begins_a_new_term():
    record = LeaseRecord(role="role", holder="a", epoch=4, ttl_s=TTL_S)
    term = LeaseTerm("role", "a", ttl_s=TTL_S)
    assert isinstance(term.decide(Entry(record, 1), 0.0, at_least=0), Wait)
    later = term.decide(Entry(record, 1), TTL_S + 0.1, at_least=0)
    assert isinstance(later, Take)
    assert later.record.epoch == 5


Play = Callable[[MemoryBus, Records, Lease], Awaitable[None]]


def alone(play: Play, *, hub: MemoryHub, at_least: Callable[[], int] = lambda: 0) -> None:
    """Play with one candidate, which leads where nothing hinders it."""

    async def scenario() -> None:
        async with asyncio.TaskGroup() as group:
            bus = await MemoryBus.join(hub, group=group, name="operator")
            records = await Records.open(bus)
            await records.ensure(LeaseRecord)
            stop = asyncio.Event()
            lease = Lease(records, role="operator", holder="a", ttl_s=TTL_S, at_least=at_least)
            running = group.create_task(lease.run(stop, lambda: None))
            await asyncio.sleep(TTL_S)
            await play(bus, records, lease)
            stop.set()
            async with asyncio.timeout(TTL_S):
                await running
            bus.thaw()
            await bus.close()

    run_virtual(scenario())


def test_what_is_no_lease_keeps_nobody_from_leading():
    async def play(bus: MemoryBus, _: Records, lease: Lease) -> None:
        assert (lease.holds, lease.epoch) == (True, 8)
        bus.wire.send(SUBJECT, b"{")
        await asyncio.sleep(TTL_S)
        assert (lease.holds, lease.epoch) == (True, 9)

    alone(play, hub=MemoryHub(), at_least=lambda: 7)


def test_a_holder_whose_record_is_anothers_stops_at_its_next_look():
    async def play(_: MemoryBus, records: Records, lease: Lease) -> None:
        assert lease.holds
        await records.put(OTHER)
        await asyncio.sleep(TTL_S / 3 + 0.01)
        assert not lease.holds
        await asyncio.sleep(2 * TTL_S)
        assert (lease.holds, lease.epoch) == (True, 10)

    alone(play, hub=MemoryHub())


def test_a_holder_that_another_one_overtakes_while_it_renews_stops_at_once():
    buses: list[MemoryBus] = []

    def overtaken() -> int:
        while buses:
            buses.pop().wire.send(SUBJECT, msgspec.json.encode(OTHER))
        return 0

    async def play(bus: MemoryBus, _: Records, lease: Lease) -> None:
        assert lease.holds
        buses.append(bus)
        async with asyncio.timeout(TTL_S):
            while buses:
                assert lease.holds
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.02)
        assert not lease.holds

    alone(play, hub=MemoryHub(), at_least=overtaken)


def test_a_slow_server_makes_no_gaps_in_a_term():
    async def play(_: MemoryBus, __: Records, lease: Lease) -> None:
        for ___ in range(10_000):
            assert lease.holds
            await asyncio.sleep(0.01)

    hub = MemoryHub()
    hub.set_faults("_INBOX.>", Faults(delay_s=0.48))
    alone(play, hub=hub)


def test_a_lease_that_is_out_of_reach_keeps_nobody_from_stopping():
    async def play(bus: MemoryBus, _: Records, __: Lease) -> None:
        bus.freeze()

    alone(play, hub=MemoryHub())


def test_one_of_several_leads_and_another_when_it_is_cut_off():
    async def scenario() -> None:
        hub = MemoryHub()
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            buses, leases, tasks = [], [], []
            for name in "abc":
                bus = await MemoryBus.join(hub, group=group, name="operator")
                records = await Records.open(bus)
                await records.ensure(LeaseRecord)
                lease = Lease(records, role="operator", holder=name, ttl_s=TTL_S)
                buses.append(bus)
                leases.append(lease)
                tasks.append(group.create_task(lease.run(stop, lambda: None)))
            await asyncio.sleep(TTL_S)
            (first,) = [n for n, lease in enumerate(leases) if lease.holds]
            assert leases[first].epoch == 1
            buses[first].cut()
            for _ in range(100):
                await asyncio.sleep(0.1)
                assert sum(lease.holds for lease in leases) <= 1
            assert not leases[first].holds
            (second,) = [n for n, lease in enumerate(leases) if lease.holds]
            assert leases[second].epoch == 2
            buses[first].heal()
            await asyncio.sleep(2 * TTL_S)
            assert [lease.holds for lease in leases].index(True) == second
            stop.set()
            await asyncio.gather(*tasks)
            assert not any(lease.holds for lease in leases)
            entry = await (await Records.open(buses[0])).get(LeaseRecord, "operator")
            assert entry is not None
            assert entry.record.holder == ""
            for bus in buses:
                await bus.close()

    run_virtual(scenario())
