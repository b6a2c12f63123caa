"""The step book: each moment of a stream in one stage, whatever the engine does; the same as looking at each choice in each step."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from services.engine.stepbook import StepBook
from services.engine.steps.step import Prefill, Queued, Step
from shared.ids import EngineId, RequestId
from shared.messages import ENGINE_STAGES, Spent
from tests.support.step_histories import History

E1 = EngineId("e1")
COUNTS = (
    "prefill_tokens",
    "recomputed_tokens",
    "drafted_tokens",
    "accepted_tokens",
    "preemptions",
    "first_step",
)


def stages(spent: Spent | None) -> dict[str, int]:
    """Return the stages that are not nothing, in microseconds."""
    assert spent is not None
    return {stage.value: us for stage, us in zip(ENGINE_STAGES, spent.us, strict=True) if us}


def ms(spent: Spent | None) -> dict[str, float]:
    return {name: us / 1000 for name, us in stages(spent).items()}


@given(st.integers(0, 1 << 32), st.integers(1, 40))
@settings(deadline=None)
def test_it_says_what_a_naive_accountant_says(seed: int, steps: int):
    book = StepBook()
    history = History(Random(seed), book)

    history.run(steps)
    history.finish()

    for stream, spent in history.told:
        assert +stream.us == stages(spent)
        assert all(us >= 0 for us in spent.us)
        assert sum(spent.us) == round(spent.until * 1e6) - round(spent.received_at * 1e6)
        assert [stream.counts[name] for name in COUNTS] == [getattr(spent, name) for name in COUNTS]
        worst = sorted(stream.blocked_by.values(), reverse=True)[:3]
        assert worst == [blocker.us for blocker in spent.blocked_by]
        for blocker in spent.blocked_by:
            assert stream.blocked_by[blocker.request] == blocker.us


@given(st.integers(0, 1 << 32), st.integers(1, 40))
@settings(deadline=None)
def test_each_token_is_found_in_the_step_that_made_it(seed: int, steps: int):
    book = StepBook()
    history = History(Random(seed), book)

    history.run(steps)
    history.finish()

    for stream, spent in history.told:
        detail = book.detail(E1, stream.request)
        assert detail.is_known == bool(spent.first_step)
        for choice, runs in zip(stream.choices, detail.runs, strict=False):
            assert choice.made == [step_of(runs, token) for token in range(len(choice.made))]


def step_of(runs, token: int) -> int:
    run = max((each for each in runs if each.token <= token), key=lambda each: each.token)
    return run.step + (token - run.token) // run.per_step


def test_a_wait_for_blocks_is_told_as_part_of_the_queue():
    book = StepBook()
    book.open("k", RequestId("r"), received_at=1.0)
    book.enqueue("k", "a", at=1.0)

    book.feed(Step(1, 3.0, 3.5, prefills=[Prefill("a", 5)], queued=[Queued("a", 1_900_000)]))
    spent = book.spent("k", until=3.5, decode_tokens=1)

    assert {"queue": 2000, "prefill": 500} == ms(spent)
    assert 1_900_000 == spent.blocks_us


def test_no_more_is_told_to_be_for_blocks_than_was_queued():
    book = StepBook()
    book.open("k", RequestId("r"), received_at=1.0)
    book.enqueue("k", "a", at=1.0)

    book.feed(Step(1, 1.2, 1.5, prefills=[Prefill("a", 5)], queued=[Queued("a", 900_000)]))

    assert 200_000 == book.spent("k", until=1.5, decode_tokens=1).blocks_us


def test_of_several_choices_the_one_with_the_fewest_cached_tokens_says_where_they_came_from():
    book = StepBook()
    book.open("k", RequestId("r"), received_at=0.0)
    for ref in ("a", "b"):
        book.enqueue("k", ref, at=0.1)
    book.feed(
        Step(
            1,
            0.1,
            0.2,
            prefills=[
                Prefill("a", 10, cached=90, host=60, disk=30),
                Prefill("b", 20, cached=80, host=0, disk=50),
            ],
        )
    )

    spent = book.spent("k", until=0.3, decode_tokens=2)

    assert spent is not None
    assert (80, 0, 50) == (spent.cached_tokens, spent.host_tokens, spent.disk_tokens)
