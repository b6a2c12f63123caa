"""When a process is started again, by values and properties."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared.processes.restart import (
    BASE_DELAY_S,
    MAX_DELAY_S,
    STABLE_S,
    START_ATTEMPTS,
    Again,
    GiveUp,
    Record,
    after_exit,
)


def test_one_that_never_was_ready_is_given_up_after_a_few_attempts():
    record = Record()
    for _ in range(START_ATTEMPTS - 1):
        decision = after_exit(record, lived_s=1.0, ready=False)
        assert isinstance(decision, Again)
        record = decision.record

    assert GiveUp(failures=START_ATTEMPTS) == after_exit(record, lived_s=1.0, ready=False)


def test_one_that_was_ready_once_is_never_given_up():
    record = Record(failures=50, was_ready=True)

    decision = after_exit(record, lived_s=0.1, ready=False)

    assert isinstance(decision, Again)
    assert MAX_DELAY_S == decision.delay_s


def test_a_stable_life_clears_the_record():
    decision = after_exit(Record(failures=9, was_ready=True), lived_s=STABLE_S, ready=True)

    assert Again(delay_s=BASE_DELAY_S, record=Record(failures=1, was_ready=True)) == decision


@given(st.lists(st.tuples(st.floats(0, 1000), st.booleans()), max_size=50))
def test_delays_stay_within_their_bounds(lives):
    record = Record()
    for lived_s, ready in lives:
        decision = after_exit(record, lived_s=lived_s, ready=ready)
        if isinstance(decision, GiveUp):
            assert not record.was_ready
            return
        assert BASE_DELAY_S <= decision.delay_s <= MAX_DELAY_S
        record = decision.record
