"""What waits for a collector: batches, bounds, pauses, and that every trace is counted once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.tracer.outbox import (
    FIRST_PAUSE_S,
    LONGEST_ASKED_S,
    LONGEST_PAUSE_S,
    Outbox,
    OutboxSettings,
    Parcel,
)
from services.tracer.ports import Later, Never, Taken
from tests.support.traced_ledgers import SERVICE

SMALL = OutboxSettings(max_bytes=100, batch_bytes=30, batch_age_s=1.0)


def parcel(size: int = 10, *, at: float = 0.0, timeout_s: float = 5.0) -> Parcel:
    return Parcel(SERVICE, b"x" * size, timeout_s, at)


def filled(count: int, *, settings: OutboxSettings = SMALL) -> Outbox:
    outbox = Outbox(settings)
    for _ in range(count):
        outbox.add(parcel())
    return outbox


def test_a_batch_is_due_when_it_is_old_or_full():
    outbox = Outbox(SMALL)

    assert outbox.due_at() is None
    outbox.add(parcel(at=5.0))
    assert 6.0 == outbox.due_at()
    outbox.add(parcel(20, at=5.5))
    assert 5.0 == outbox.due_at()


def test_a_batch_takes_what_fits_and_one_is_under_way_at_a_time():
    outbox = filled(5)

    batch = outbox.take()

    assert (3, 30) == (len(batch.parcels), batch.size)
    assert outbox.due_at() is None
    assert (5, 50) == (len(outbox), outbox.held_bytes)
    outbox.settle(Taken(), now=0.0, draw=0.5)
    assert (2, 20, 3) == (len(outbox), outbox.held_bytes, outbox.counts.exported)


def test_the_shortest_deadline_of_a_batch_holds():
    outbox = Outbox(SMALL)
    for timeout_s in (5.0, 2.0, 9.0):
        outbox.add(parcel(timeout_s=timeout_s))

    assert 2.0 == outbox.take().timeout_s


def test_the_oldest_make_room():
    outbox = Outbox(SMALL)
    for n in range(25):
        outbox.add(Parcel(SERVICE, bytes([n]) * 10, 5.0, float(n)))

    assert (10, 100, 15) == (len(outbox), outbox.held_bytes, outbox.counts.dropped)
    assert bytes([15]) * 10 == outbox.take().parcels[0].spans


def test_a_trace_larger_than_all_room_is_dropped():
    outbox = filled(1)
    outbox.add(parcel(101))

    assert (0, 0, 2) == (len(outbox), outbox.held_bytes, outbox.counts.dropped)


def test_a_batch_that_did_not_arrive_waits_at_its_old_place():
    outbox = filled(4)
    first = outbox.take()
    outbox.settle(Later("away"), now=10.0, draw=0.5)

    assert 10.0 + FIRST_PAUSE_S == outbox.due_at()
    again = outbox.take()
    assert first.parcels == again.parcels
    assert (1, 0) == (outbox.counts.retries, outbox.counts.dropped)


def test_what_came_meanwhile_pushes_the_oldest_of_a_failed_batch_out():
    outbox = filled(10)
    batch = outbox.take()
    for _ in range(2):
        outbox.add(parcel())
    assert 100 == outbox.held_bytes
    outbox.settle(Later("away"), now=0.0, draw=0.5)

    assert (100, 2) == (outbox.held_bytes, outbox.counts.dropped)
    assert batch.parcels[0] == outbox.take().parcels[0]


def test_pauses_grow_are_spread_and_end_with_success():
    outbox = filled(1)
    pauses = []
    for _ in range(8):
        outbox.take()
        outbox.settle(Later("away"), now=0.0, draw=0.5)
        pauses.append(outbox.due_at())

    assert [1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S] == pauses
    outbox.take()
    outbox.settle(Later("away"), now=0.0, draw=0.0)
    assert LONGEST_PAUSE_S / 2 == outbox.due_at()
    outbox.take()
    outbox.settle(Taken(), now=0.0, draw=0.5)
    outbox.add(parcel(at=100.0))
    outbox.take()
    outbox.settle(Later("away"), now=100.0, draw=0.5)
    assert 101.0 == outbox.due_at()


@pytest.mark.parametrize(("asked_s", "pause_s"), [(0.1, 1.0), (60.0, 60.0), (1e9, LONGEST_ASKED_S)])
def test_a_collector_may_ask_for_a_longer_pause(asked_s, pause_s):
    outbox = filled(1)
    outbox.take()
    outbox.settle(Later("busy", asked_s), now=0.0, draw=0.5)

    assert pause_s == outbox.due_at()


def test_what_a_collector_refuses_for_good_is_not_sent_again():
    outbox = filled(3)
    outbox.take()
    outbox.settle(Never("bad"), now=0.0, draw=0.5)

    assert (0, 3, 0) == (len(outbox), outbox.counts.rejected, outbox.counts.exported)


@pytest.mark.parametrize("bounds", [{"batch_bytes": 0}, {"max_bytes": 10}, {"batch_age_s": -1.0}])
def test_bounds_that_cannot_be_are_refused(bounds):
    with pytest.raises(ValueError, match="must"):
        OutboxSettings(**bounds)


@settings(max_examples=50)
@given(st.lists(st.sampled_from(["add", "take", "taken", "later", "never"]), max_size=60))
def test_every_trace_is_counted_once_and_memory_is_bounded(steps):
    outbox, added = Outbox(SMALL), 0
    is_under_way = False
    answers = {"taken": Taken(), "later": Later("away"), "never": Never("bad")}
    for number, step in enumerate(steps):
        if step == "add":
            outbox.add(parcel(9 + number % 5, at=float(number)))
            added += 1
        elif step == "take" and outbox.due_at() is not None:
            outbox.take()
            is_under_way = True
        elif step in answers and is_under_way:
            outbox.settle(answers[step], now=float(number), draw=0.5)
            is_under_way = False
        counts = outbox.counts
        assert added == counts.exported + counts.rejected + counts.dropped + len(outbox)
        assert outbox.held_bytes <= SMALL.max_bytes
