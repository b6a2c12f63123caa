"""From the number of a token to the step that made it, exact at both ends of a request and with its bound between."""

from __future__ import annotations

import struct
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.console.insight.tokens import made, sentence
from shared.ids import RequestId
from shared.messages import StepDetail, StepSpan, TokenRun
from tests.support.requests_seen import ENGINE

REQUEST = RequestId("chatcmpl-1")


def halves(*ms: float) -> bytes:
    return struct.pack(f"<{len(ms)}e", *ms)


def words(*batch: int) -> bytes:
    return struct.pack(f"<{len(batch)}H", *batch)


DETAIL = StepDetail(
    engine=ENGINE,
    request=REQUEST,
    is_known=True,
    unix_s=1_767_225_600.0,
    first_step=100,
    last_step=139,
    head_ms=halves(30, 10),
    head_batch=words(5, 4),
    middle=[
        StepSpan(
            first_step=102, steps=20, begin_us=40_000, us=400_000, batch_size=4.5, prefill_tokens=0
        ),
        StepSpan(
            first_step=122,
            steps=16,
            begin_us=440_000,
            us=2_000_000,
            batch_size=6,
            prefill_tokens=7000,
        ),
    ],
    tail_ms=halves(8, 12),
    tail_batch=words(3, 2),
    runs=[[TokenRun(token=0, step=100), TokenRun(token=10, step=115, per_step=3)]],
)


@pytest.mark.parametrize(
    ("token", "step", "after_us", "within_us", "batch"),
    [
        (1, 100, 30_000, 0, 5),
        (2, 101, 40_000, 0, 4),
        (3, 102, 60_000, 380_000, 4.5),
        (10, 109, 200_000, 240_000, 4.5),
        (11, 115, 320_000, 280_000, 4.5),
        (13, 115, 320_000, 280_000, 4.5),
        (32, 122, 565_000, 1_875_000, 6),
        (80, 138, 2_448_000, 0, 3),
        (83, 139, 2_460_000, 0, 2),
    ],
)
def test_a_token_has_its_step_its_time_and_its_batch(token, step, after_us, within_us, batch):
    (one,) = made(DETAIL, token)

    assert (step, after_us, within_us, batch) == (one.step, one.after_us, one.within_us, one.batch)


def test_a_token_behind_the_last_step_was_not_made():
    assert [] == made(DETAIL, 86)


def test_each_choice_that_has_the_token_is_told():
    both = StepDetail(
        engine=ENGINE,
        request=REQUEST,
        is_known=True,
        first_step=7,
        last_step=7,
        head_ms=halves(5),
        head_batch=words(2),
        runs=[[TokenRun(0, 7)], [], [TokenRun(0, 7)]],
    )

    assert [0, 2] == [one.choice for one in made(both, 1)]


def test_words_are_exact_where_the_engine_is_and_give_the_bound_elsewhere():
    exact, between = made(DETAIL, 2)[0], made(DETAIL, 32)[0]

    assert (
        "Token 2 was made in step 101, 40 ms after the first step began (00:00:00.040 UTC): which took 10 ms with a batch of 4."
        == sentence(exact, has_choices=False)
    )
    assert (
        "Token 32 of choice 0 was made in step 122, 565 ms after the first step began (00:00:00.565 UTC), ± 1.9 s, "
        "together with 2 others: one of those that took 125 ms with a batch of 6 on average and computed 7,000 prompt tokens between them."
        == sentence(between, has_choices=True)
    )


@given(st.lists(st.integers(1, 200), min_size=3, max_size=120), st.data())
def test_the_true_end_of_a_step_lies_within_what_is_told(ms, data):
    """Steps of whole milliseconds, which half floats hold exactly; summarised but for one at each end."""
    first = data.draw(st.integers(1, 10**6))
    ends = [1000 * ms_so_far for ms_so_far in accumulate(ms)]
    last = first + len(ms) - 1
    span = StepSpan(
        first_step=first + 1,
        steps=len(ms) - 2,
        begin_us=ends[0],
        us=ends[-2] - ends[0],
        batch_size=1.0,
        prefill_tokens=0,
    )
    detail = StepDetail(
        engine=ENGINE,
        request=REQUEST,
        is_known=True,
        first_step=first,
        last_step=last,
        head_ms=halves(ms[0]),
        head_batch=words(1),
        middle=[span],
        tail_ms=halves(ms[-1]),
        tail_batch=words(1),
        runs=[[TokenRun(token=0, step=first)]],
    )

    for place, end in enumerate(ends):
        (one,) = made(detail, place + 1)
        assert first + place == one.step
        assert abs(one.after_us - end) <= one.within_us + 1
