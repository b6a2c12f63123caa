"""What the gate estimates waits from: the times of late, and the turns that a class gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.admission.pace import Pace
from services.gateway.admission.turns import Turns
from services.gateway.admission.verdict import AdmissionSettings
from shared.messages import Priority

BATCH, DEFAULT, INTERACTIVE = Priority.BATCH, Priority.DEFAULT, Priority.INTERACTIVE


def paced(*seconds: float) -> Pace:
    made = Pace()
    for each in seconds:
        made.held(each, work_tokens=100)
    return made


def test_nothing_measured_is_no_wait():
    assert (0.0, 0.0) == (Pace().wait_s(choices=9, limit=1), Pace().hold_s(work_tokens=100))


def test_slots_come_free_at_the_mean_and_answers_take_what_nearly_all_take():
    pace = paced(*[1.0] * 8, 6.0, 6.0)

    assert 4.0 == pace.wait_s(choices=8, limit=4)
    assert 6.0 == pace.hold_s(work_tokens=100)
    assert 0.0 == pace.wait_s(choices=-3, limit=4)


def test_an_answer_takes_as_long_as_its_work_or_as_others_take():
    pace = paced(10.0)

    assert (1.0, 10.0) == (pace.hold_s(work_tokens=10), pace.hold_s(work_tokens=1000))


def test_old_times_are_forgotten():
    assert 1.0 == paced(*[50.0] * 100, *[1.0] * 64).hold_s(work_tokens=100)


def test_a_class_below_a_busy_one_waits_for_more_turns_than_there_are_before_it():
    turns = Turns(AdmissionSettings())
    assert 3 == turns.until(DEFAULT, own=3, higher=0)

    for number in range(200):
        served = INTERACTIVE if number % 2 else DEFAULT
        turns.had(served, still_waiting=[DEFAULT])

    assert 6 == pytest.approx(turns.until(DEFAULT, own=3, higher=0), rel=0.05)


def test_a_class_that_does_not_wait_is_taken_to_get_all_turns_again():
    turns = Turns(AdmissionSettings())
    for _ in range(100):
        turns.had(INTERACTIVE, still_waiting=[DEFAULT])
    for _ in range(300):
        turns.had(INTERACTIVE, still_waiting=[])

    assert 3 == pytest.approx(turns.until(DEFAULT, own=3, higher=0), rel=0.01)


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from(Priority)), max_size=200),
    st.sampled_from(Priority),
    st.integers(1, 50),
    st.integers(0, 50),
)
def test_turns_until_ones_own_are_within_what_the_rule_between_classes_allows(
    history, priority, own, higher
):
    turns = Turns(AdmissionSettings())
    for is_waiting, served in history:
        turns.had(served, still_waiting=list(Priority) if is_waiting else [])
    patience = {INTERACTIVE: float("inf"), DEFAULT: 4, BATCH: 9}[priority]

    assert (
        min(own + higher, own * (patience + 1))
        <= turns.until(priority, own=own, higher=higher)
        <= own * (patience + 1)
    )
