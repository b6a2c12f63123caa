"""Turns, lives, choices, trailers and parts of jobs, by values."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kvstore.fairness import LOADS_A_SAVE, FairQueue, Kind
from services.kvstore.lifecycle import (
    LIFE,
    RUNNING,
    SERVING,
    Event,
    MirrorState,
    Record,
    RetryRule,
    Trouble,
    next_start,
)
from services.kvstore.rates import PROBE_EVERY, Choice, choose
from services.kvstore.trailer import KEY_ROOM, TRAILER_BYTES, Check, seal
from services.kvstore.work import NEWS_BYTES, Job, cut, packets
from shared.kv.protocol import KEYS_A_PACKET, MAX_PACKET, Gained
from shared.kv.seqpacket import encode
from shared.transitions import IllegalTransition

SPACE = "0123456789abcdef0123456789abcdef"


def a_queue(**bounds: int) -> FairQueue[str]:
    return FairQueue(**{"max_load_bytes": 100, "max_save_bytes": 100, **bounds})


def test_engines_take_turns_whatever_each_has_waiting():
    queue = a_queue()
    for number in range(5):
        assert queue.offer(1, Kind.LOAD, f"a{number}", 10)
    assert queue.offer(2, Kind.LOAD, "b0", 10)
    assert queue.offer(2, Kind.LOAD, "b1", 10)
    taken = [queue.take(loads=True, saves=True)[1] for _ in range(5)]

    assert ["a0", "b0", "a1", "b1", "a2"] == taken


def test_loads_go_before_saves_but_not_for_ever():
    queue = a_queue(max_load_bytes=10_000)
    queue.offer(1, Kind.SAVE, "save", 1)
    for _ in range(LOADS_A_SAVE + 5):
        queue.offer(2, Kind.LOAD, "load", 1)
    taken = [queue.take(loads=True, saves=True)[1] for _ in range(LOADS_A_SAVE + 2)]

    assert ["load"] * LOADS_A_SAVE + ["save", "load"] == taken


def test_a_save_waits_while_a_load_has_no_room_at_a_mirror():
    queue = a_queue()
    queue.offer(1, Kind.SAVE, "save", 1)
    queue.offer(1, Kind.LOAD, "load", 1)

    assert queue.take(loads=False, saves=True) is None
    assert (Kind.LOAD, "load") == queue.take(loads=True, saves=True)
    assert (Kind.SAVE, "save") == queue.take(loads=False, saves=True)
    assert queue.take(loads=True, saves=True) is None


def test_what_does_not_fit_is_refused_and_others_are_not_concerned():
    queue = a_queue()
    assert queue.offer(1, Kind.SAVE, "huge, alone", 1000)
    assert not queue.offer(1, Kind.SAVE, "more", 1)
    assert queue.offer(1, Kind.LOAD, "a load", 100)
    assert queue.offer(2, Kind.SAVE, "another engine", 100)
    assert ["a load", "huge, alone"] == queue.drop(1)
    assert queue.offer(1, Kind.SAVE, "again", 100)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(Kind), st.integers(1, 40)), max_size=80)
)
def test_nothing_is_lost_or_doubled_and_bounds_hold(offers):
    queue: FairQueue[int] = FairQueue(max_load_bytes=100, max_save_bytes=60)
    inside = set()
    for number, (engine, kind, size) in enumerate(offers):
        if queue.offer(engine, kind, number, size):
            inside.add(number)
        assert queue.waiting_bytes(Kind.SAVE) <= 4 * 60
    taken = Counter()
    while (found := queue.take(loads=True, saves=True)) is not None:
        taken[found[1]] += 1

    assert taken == Counter(inside)
    assert 0 == queue.waiting(Kind.LOAD) == queue.waiting_bytes(Kind.SAVE)


def test_only_a_mirror_that_is_gone_starts_again():
    starts = {s for s in MirrorState if _next(s, Event.START) is not None}

    assert {MirrorState.DOWN} == starts
    assert LIFE.is_terminal(MirrorState.STOPPED)
    for state in RUNNING:
        assert MirrorState.ENDING is LIFE.next(state, Event.KILLED)
        assert MirrorState.DOWN is LIFE.next(state, Event.GONE)
    assert SERVING < RUNNING


def _next(state: MirrorState, event: Event) -> MirrorState | None:
    try:
        return LIFE.next(state, event)
    except IllegalTransition:
        return None


def test_files_are_emptied_after_crashes_in_a_row_and_for_nothing_else():
    rule = RetryRule()
    record = Record()
    starts = [
        next_start(rule, record, Trouble.CRASHED, was_opening=True, served_s=0.0) for _ in range(3)
    ]
    assert [False, False, True] == [start.empty for start in starts]
    for trouble in set(Trouble) - {Trouble.CRASHED, Trouble.DAMAGED}:
        record = Record()
        for _ in range(20):
            start = next_start(rule, record, trouble, was_opening=False, served_s=1.0)
            assert not start.empty
            assert start.after_s <= rule.max_s
    assert next_start(rule, Record(), Trouble.DAMAGED, was_opening=True, served_s=0.0).empty


def test_calm_service_makes_the_past_forgotten():
    rule, record = RetryRule(), Record()
    for _ in range(10):
        start = next_start(rule, record, Trouble.CRASHED, was_opening=False, served_s=rule.calm_s)
        assert not start.empty
        assert rule.first_s == start.after_s


def test_a_full_or_read_only_disk_goes_on_reading_at_once():
    for trouble in (Trouble.FULL, Trouble.READ_ONLY):
        start = next_start(RetryRule(), Record(), trouble, was_opening=False, served_s=5.0)
        assert start.read_only
        assert 0.0 == start.after_s


def test_the_mirror_that_will_be_done_first_reads():
    fast, slow = Choice(0, 2e9, 0), Choice(1, 1e9, 0)
    assert 0 == choose([slow, fast], 10, turn=0)
    busy = Choice(0, 2e9, 100)
    assert 1 == choose([slow, busy], 10, turn=0)
    assert 1 == choose([fast, Choice(1, 0.0, 0)], 10, turn=0), "never measured"
    probes = [choose([slow, fast], 10, turn=turn) for turn in range(2 * PROBE_EVERY)]
    assert 2 == probes.count(1)


VALUE = bytes(range(256)) * 4


def sealed(key: bytes = b"k" * 36, generation: int = 3, space: str = SPACE) -> bytearray:
    stored = bytearray(VALUE) + bytearray(TRAILER_BYTES)
    seal(memoryview(stored), value_bytes=len(VALUE), space=space, key=key, generation=generation)
    return stored


def is_sound(
    stored: bytes, *, key: bytes = b"k" * 36, generation: int = 3, space: str = SPACE
) -> bool:
    check = Check(value_bytes=len(VALUE), space=space, key=key, generation=generation)
    view = memoryview(stored)
    for at in range(0, len(VALUE), 100):
        check.see(view[at : min(at + 100, len(VALUE))])
    return check.is_sound(view[len(VALUE) :])


def test_a_value_is_sound_under_its_own_name_only():
    assert is_sound(sealed())
    assert not is_sound(sealed(key=b"j" * 36))
    assert not is_sound(sealed(key=b"k" * 35))
    assert not is_sound(sealed(generation=4))
    assert not is_sound(sealed(space=SPACE[::-1]))
    with pytest.raises(ValueError, match="a key of"):
        sealed(key=b"k" * (KEY_ROOM + 1))


@given(st.integers(0, (len(VALUE) + TRAILER_BYTES) * 8 - 1))
def test_any_flipped_bit_is_seen(bit):
    stored = sealed()
    stored[bit // 8] ^= 1 << bit % 8

    assert not is_sound(stored)


@given(st.lists(st.binary(min_size=1, max_size=64), max_size=6000))
def test_news_fit_into_packets_and_none_is_lost(keys):
    parts = list(packets(keys))

    assert keys == [key for part in parts for key in part]
    for part in parts:
        assert len(part) <= KEYS_A_PACKET
        assert len(encode(Gained(keys=part))) <= MAX_PACKET
    assert NEWS_BYTES < MAX_PACKET


@given(st.integers(0, 100), st.integers(1, 50), st.integers(1, 200))
def test_parts_of_a_job_are_bounded_and_whole(count, value_bytes, bite_bytes):
    parts = list(cut(range(count), value_bytes=value_bytes, bite_bytes=bite_bytes))

    assert list(range(count)) == [p for part in parts for p in part]
    assert all(len(part) == 1 or len(part) * value_bytes <= bite_bytes for part in parts)


def test_a_job_tells_its_waits_and_the_first_reason():
    job = Job(7, Kind.LOAD, [b"a", b"b"], [0, 1], now=10.0)
    job.begin(12.0)
    job.miss([1], "first")
    job.miss([0], "second")
    job.begin(13.0)
    done = job.done(15.0)

    assert ([0, 1], "first", 2.0, 3.0) == (done.missing, done.reason, done.waited, done.seconds)
