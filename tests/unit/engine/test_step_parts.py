"""Parts of the step book: what a decode-only step takes, who is to blame, which step made which token, what is remembered."""

from __future__ import annotations

import struct
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.steps.blame import CHUNK, FINE_CHUNKS, Blame
from services.engine.steps.decode_time import DecodeTime
from services.engine.steps.log import Life, StepLog
from services.engine.steps.news import MAX_MOVES, StepNews
from services.engine.steps.step import Prefill, Span, Step
from services.engine.steps.token_runs import MAX_RUNS, TokenRuns
from shared.ids import EngineId, RequestId

E1, R1 = EngineId("e1"), RequestId("r1")


# --- decode time


def learned(*steps: tuple[int, int]) -> DecodeTime:
    time = DecodeTime()
    for size, us in steps:
        time.learn(size, us)
    return time


def test_nothing_is_known_before_a_step_was_seen():
    assert learned().of(4) is None


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, 1000.0), (4, 1000.0), (6, 1400.0), (8, 1800.0), (500, 1800.0)],
)
def test_between_sizes_that_were_seen_lies_a_straight_line(size, expected):
    assert learned((4, 1000), (8, 1800)).of(size) == expected


def test_one_stop_of_the_process_does_not_count_in_full():
    time = learned(*[(4, 1000)] * 40, (4, 60_000_000))

    assert time.of(4) < 1100


def test_it_follows_when_contexts_grow():
    time = learned(*[(4, 1000)] * 40, *[(4, 2000)] * 100)

    assert 1900 < time.of(4) <= 2000


# --- blame


@given(
    st.lists(st.one_of(st.tuples(st.integers(0, 5), st.integers(1, 100)), st.none()), max_size=400)
)
def test_each_reader_sums_what_came_since_its_mark(events):
    blame = Blame()
    readers = []
    for event in events:
        if event is None:
            readers.append((blame.mark(), Counter()))
            continue
        who, us = RequestId(f"r{event[0]}"), event[1]
        blame.charge(who, us)
        for _, expected in readers:
            expected[who] += us

    for mark, expected in readers:
        told = {}
        blame.since(mark, told)
        # Of whole chunks the worst four of six blockers are kept.
        assert all(us <= expected[who] for who, us in told.items())
        if sum(1 for event in events if event) <= CHUNK:
            assert expected == told


def test_the_worst_is_found_far_back_in_a_bounded_memory():
    blame = Blame()
    mark = blame.mark()
    blame.charge(RequestId("worst"), 1_000_000)
    for number in range(4 * FINE_CHUNKS * CHUNK):
        blame.charge(RequestId(f"r{number}"), 10)
    late = blame.mark()
    blame.charge(RequestId("late"), 5)

    early, last = {}, {}
    blame.since(mark, early)
    blame.since(late, last)

    assert "worst" == max(early, key=early.__getitem__)
    assert {"late": 5} == last
    assert len(blame._entries) <= 2 * FINE_CHUNKS * CHUNK


# --- token runs


def test_an_answer_of_128k_tokens_is_one_run():
    runs = TokenRuns(7)

    assert [(0, 7, 1)] == runs.by(131_078)


def test_drafts_on_every_second_step_stay_bounded_and_nearly_right():
    runs = TokenRuns(1)
    made = [1]
    for step in range(2, 60_001):
        tokens = 1 + step % 2 * 2
        made += [step] * tokens
        runs.made(step, tokens)

    kept = runs.by(60_000)

    assert len(kept) <= MAX_RUNS
    for token in (0, 5, 60_000, len(made) - 1):
        first, step, per_step = max(run for run in kept if run[0] <= token)
        assert abs(step + (token - first) // per_step - made[token]) <= 40


# --- log


def log_of(steps: int, *, kept: int = 1000) -> StepLog:
    log = StepLog(kept_steps=kept)
    for number in range(1, steps + 1):
        log.add(number, number * 10_000, batch=number % 100, prefill_tokens=number % 7)
    return log


def test_first_and_last_twentieth_are_told_one_by_one_and_the_middle_in_spans():
    life = Life(101, 500, 1_000_500, [[(0, 101, 1)]])

    detail = log_of(600).detail(E1, R1, life)

    assert 20 * 2 == len(detail.head_ms) == len(detail.tail_ms) == len(detail.tail_batch)
    assert 9.5 == struct.unpack("<20e", detail.head_ms)[0]
    assert (10.0,) * 19 == struct.unpack("<20e", detail.head_ms)[1:]
    assert [number % 100 for number in range(101, 121)] == [
        *struct.unpack("<20H", detail.head_batch)
    ]
    assert len(detail.middle) <= 64
    assert 360 == sum(span.steps for span in detail.middle)
    assert (121, 199_500) == (detail.middle[0].first_step, detail.middle[0].begin_us)
    assert 360 * 10_000 == sum(span.us for span in detail.middle)
    assert sum(number % 7 for number in range(121, 481)) == sum(
        span.prefill_tokens for span in detail.middle
    )


@pytest.mark.parametrize("last_step", [11, 12, 13, 51])
def test_every_step_of_a_short_life_is_told(last_step):
    detail = log_of(60).detail(E1, R1, Life(11, last_step, 100_000, []))

    told = (len(detail.head_ms) + len(detail.tail_ms)) // 2
    assert last_step - 10 == told + sum(span.steps for span in detail.middle)


def test_what_the_ring_has_lost_is_unknown_and_what_it_has_is_right():
    log = log_of(2500, kept=1000)

    assert not log.detail(E1, R1, Life(1400, 1700, 1, [])).is_known
    detail = log.detail(E1, R1, Life(1600, 2400, 15_990_000, []))
    assert 801 * 10_000 == sum(span.us for span in detail.middle) + 82 * 10_000
    assert log.size < 1000 * 15


def test_requests_are_forgotten_by_bytes_the_oldest_first():
    log = StepLog(kept_request_bytes=10_000)
    for number in range(100):
        log.remember(RequestId(f"r{number}"), Life(1, 2, 3, [[(0, 1, 1)]]))

    assert log.recall(RequestId("r0")) is None
    assert log.recall(RequestId("r99")) is not None
    assert 5_000 < log.size <= 10_000


def test_numbers_that_are_missing_are_steps_of_no_length():
    log = StepLog(kept_steps=100)
    log.add(1, 1000, 1, 0)
    log.add(4, 5000, 2, 0)

    detail = log.detail(E1, R1, Life(1, 4, 0, []))

    assert [1.0] == [*struct.unpack("<e", detail.head_ms)]
    assert [0, 0] == [span.us for span in detail.middle]
    assert [4.0] == [*struct.unpack("<e", detail.tail_ms)]


# --- news


def test_moves_beyond_the_bound_are_counted():
    news = StepNews()
    for number in range(MAX_MOVES + 7):
        news.move(RequestId(f"r{number}"), 3, 1000)

    moves, _, dropped = news.take(3000, "")

    assert (MAX_MOVES, 7, 2000) == (len(moves), dropped, moves[0].ago_us)
    assert ([], 0) == (news.take(3000, "")[0], news.take(3000, "")[2])


def test_the_longest_step_names_its_largest_prompt():
    news = StepNews()
    for number, (took_us, prompts) in enumerate(
        [(5000, []), (90_000, [Prefill("a", 10), Prefill("b", 500)]), (7000, [])], start=1
    ):
        span = Span(Step(number, 1.0, 1.0 + took_us / 1e6, decodes=3, prefills=prompts), 1_000_000)
        span.blocker = RequestId(span.largest.ref) if span.largest else RequestId("")
        news.step(span, is_new_mode=False)

    _, summary, _ = news.take(0, "")

    assert (3, 102_000, 90_000, "b", 5, 510, 11) == (
        summary.steps,
        summary.busy_us,
        summary.longest_us,
        summary.longest_by,
        summary.largest_batch,
        summary.prefill_tokens,
        summary.decode_tokens,
    )
