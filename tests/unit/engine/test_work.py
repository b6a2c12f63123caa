"""Outstanding work is exact: the total is the sum over the streams, whatever happens in which order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.engine.work import StreamWork, TotalWork


def test_owes_the_prompt_until_the_first_token():
    total = TotalWork()
    work = StreamWork(total, allowed_tokens=10, said=[0, 0])
    work.accept(prompt_tokens=100, context_tokens=8192)

    assert total.tokens == 120
    work.done(0, 1)
    assert total.tokens == 19


def test_the_context_bounds_what_may_come():
    total = TotalWork()
    work = StreamWork(total, allowed_tokens=8192, said=[0])

    work.accept(prompt_tokens=8000, context_tokens=8192)

    assert total.tokens == 8192


def test_tokens_before_the_answer_of_submit_count():
    total = TotalWork()
    work = StreamWork(total, allowed_tokens=10, said=[0])

    work.done(0, 3)
    work.accept(prompt_tokens=100, context_tokens=8192)

    assert total.tokens == 7
    assert work.completion_tokens == 3


def test_an_ended_choice_owes_nothing():
    total = TotalWork()
    work = StreamWork(total, allowed_tokens=10, said=[0, 0])

    work.end_choice(0)
    work.end_choice(0)

    assert total.tokens == 10


ACTS = st.one_of(
    st.tuples(st.just("done"), st.integers(0, 2), st.integers(0, 40)),
    st.tuples(st.just("end_choice"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("accept"), st.integers(0, 500), st.just(0)),
    st.tuples(st.just("end"), st.just(0), st.just(0)),
)


@given(st.lists(st.tuples(st.integers(0, 3), ACTS), max_size=80))
def test_total_is_the_sum_and_never_negative(steps):
    total = TotalWork()
    works = [StreamWork(total, allowed_tokens=100, said=[0, 0, 0]) for _ in range(4)]
    accepted = set()
    for index, (act, first, second) in steps:
        work = works[index]
        if act == "done":
            work.done(first, second)
        elif act == "end_choice":
            work.end_choice(first)
        elif act == "end":
            work.end()
        elif index not in accepted:
            accepted.add(index)
            work.accept(prompt_tokens=first, context_tokens=300)

        assert total.tokens == sum(work.tokens for work in works)
        assert total.tokens >= 0
        assert all(work.tokens <= 500 + 300 for work in works)
    for work in works:
        work.end()
    assert total.tokens == 0
