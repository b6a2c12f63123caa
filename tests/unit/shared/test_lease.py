"""At no time do two believe to hold a lease, whatever pauses and partitions come; epochs rise; somebody leads again soon."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.lease import Lease, LeaseTerm, Take, Wait
from shared.membus import MemoryBus, MemoryHub
from shared.messages import LeaseRecord
from shared.records import Entry, Records
from shared.vloop import run_virtual

TTL_S = 3.0


class Candidate:
    """One candidate of a simulation, with the clock of everybody."""

    def __init__(self, name: str) -> None:
        self.term = LeaseTerm("role", name, ttl_s=TTL_S)
        self.next_s = 0.0
        self.paused_until_s = 0.0


@given(st.integers(0, 1 << 32))
@settings(max_examples=150)
def test_never_two_hold_it_and_epochs_rise(seed: int):
    """Reads and writes take up to half a second; processes stand still for up to three ttl in between."""
    draw = random.Random(seed)
    state: Entry[LeaseRecord] | None = None
    revision = 0
    candidates = [Candidate(name) for name in "abc"]
    pending: list[tuple[float, Candidate, str, object]] = []
    epochs: list[int] = []
    now = 0.0
    for step in range(600):
        now += 0.05
        for one in candidates:
            if draw.random() < 0.004:
                one.paused_until_s = now + draw.random() * 3 * TTL_S
            if one.paused_until_s <= now >= one.next_s:
                one.next_s = float("inf")
                pending.append((now + draw.random() * 0.2, one, "read", None))
        # The server writes whether or not the sender stands still by then.
        due = [
            item
            for item in pending
            if item[0] <= now and (item[2] == "write" or item[1].paused_until_s <= now)
        ]
        for item in due:
            pending.remove(item)
            _, one, what, value = item
            match what:
                case "read":
                    decision = one.term.decide(state, now, at_least=0)
                    if isinstance(decision, Wait):
                        one.term.lost()
                        one.next_s = now + min(decision.for_s, one.term.period_s)
                    else:
                        pending.append((now + draw.random() * 0.2, one, "write", (decision, now)))
                case "write":
                    wanted, asked_s = value  # type: ignore[misc]
                    fits = wanted.expected == (state.revision if state else 0)
                    if fits:
                        revision += 1
                        if state is None or state.record.epoch != wanted.record.epoch:
                            epochs.append(wanted.record.epoch)
                        state = Entry(wanted.record, revision)
                    answer = (wanted.record if fits else None, asked_s)
                    pending.append((now + draw.random() * 0.2, one, "ack", answer))
                case _:
                    record, asked_s = value  # type: ignore[misc]
                    if record is None:
                        one.term.lost()
                    else:
                        one.term.written(record, asked_s=asked_s)
                    one.next_s = now + one.term.period_s
        # A process that stands still does not act; one that runs asks `holds` first.
        holders = [one for one in candidates if one.term.holds(now) and one.paused_until_s <= now]
        assert len(holders) <= 1, (step, seed)
    assert epochs == sorted(set(epochs))
    assert epochs


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
