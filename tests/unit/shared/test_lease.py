"""At no time do two believe to hold a lease, whatever pauses and partitions come; epochs rise; somebody leads again soon."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.entry import Entry
from shared.lease import Lease, LeaseTerm, Take, Wait
from shared.membus import MemoryBus, MemoryHub
from shared.messages import LeaseRecord
from shared.records import Records
from shared.vloop import run_virtual

TTL_S = 3.0


class Candidate:
    """One candidate of a simulation."""

    def __init__(self, name: str) -> None:
        self.term = LeaseTerm("role", name, ttl_s=TTL_S)
        self.next_s = 0.0
        self.paused_until_s = 0.0


Due = tuple[float, Candidate, Callable[[], None], bool]
"""When, whose, what, and whether it happens at the server, where nobody stands still."""


class Simulation:
    """Three candidates and a server. Frames take up to 0.2 s; processes stand still for up to three ttl at any moment."""

    def __init__(self, seed: int) -> None:
        self.candidates = [Candidate(name) for name in "abc"]
        self.epochs: list[int] = []
        self.now = 0.0
        self._draw = random.Random(seed)
        self._state: Entry[LeaseRecord] | None = None
        self._revision = 0
        self._due: list[Due] = []

    def step(self) -> None:
        """Let a twentieth of a second pass."""
        self.now += 0.05
        for one in self.candidates:
            if self._draw.random() < 0.004:
                one.paused_until_s = self.now + self._draw.random() * 3 * TTL_S
            if one.paused_until_s <= self.now >= one.next_s:
                one.next_s = float("inf")
                self._later(one, partial(self._read, one))
        for item in [item for item in self._due if self._is_due(item)]:
            self._due.remove(item)
            item[2]()

    def holders(self) -> list[Candidate]:
        """Those that would act now: one that stands still does not, one that runs asks first."""
        return [
            one
            for one in self.candidates
            if one.term.holds(self.now) and one.paused_until_s <= self.now
        ]

    def _is_due(self, item: Due) -> bool:
        at_s, one, _, at_server = item
        return at_s <= self.now and (at_server or one.paused_until_s <= self.now)

    def _later(self, one: Candidate, what: Callable[[], None], *, at_server: bool = False) -> None:
        self._due.append((self.now + self._draw.random() * 0.2, one, what, at_server))

    def _read(self, one: Candidate) -> None:
        decision = one.term.decide(self._state, self.now, at_least=0)
        if isinstance(decision, Wait):
            one.term.lost()
            one.next_s = self.now + min(decision.for_s, one.term.period_s)
        else:
            self._later(one, partial(self._write, one, decision, self.now), at_server=True)

    def _write(self, one: Candidate, wanted: Take, asked_s: float) -> None:
        fits = wanted.expected == (self._state.revision if self._state else 0)
        if fits:
            self._revision += 1
            if self._state is None or self._state.record.epoch != wanted.record.epoch:
                self.epochs.append(wanted.record.epoch)
            self._state = Entry(wanted.record, self._revision)
        self._later(one, partial(self._acked, one, wanted.record if fits else None, asked_s))

    def _acked(self, one: Candidate, record: LeaseRecord | None, asked_s: float) -> None:
        if record is None:
            one.term.lost()
        else:
            one.term.written(record, asked_s=asked_s)
        one.next_s = self.now + one.term.period_s


@given(st.integers(0, 1 << 32))
@settings(max_examples=150)
def test_never_two_hold_it_and_epochs_rise(seed: int):
    simulation = Simulation(seed)
    for _ in range(600):
        simulation.step()
        assert len(simulation.holders()) <= 1
    assert simulation.epochs
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
