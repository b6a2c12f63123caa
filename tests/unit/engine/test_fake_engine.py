"""The fake's scheduler and clock: places and blocks are never exceeded, the order is priority then arrival, time follows the model."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.adapters.fake import FakeEngine, count_tokens
from services.engine.adapters.fake_batch import Batch, Task
from services.engine.adapters.fake_text import plan, words
from services.engine.ports import EngineFailedError, RefusedError
from services.engine.settings import FakeSettings
from shared.messages import ChatPrompt, Priority, RefuseReason, Sampling, TextPrompt, TokensPrompt
from shared.vloop import run_virtual
from tests.support.engine_rig import Pieces, job_of

SETTINGS = FakeSettings(max_streams=4, total_blocks=20, block_tokens=4, chunk_tokens=8)


def task(key: str, *, prompt_tokens: int = 4, tokens: int = 4, choices: int = 1) -> Task:
    sampling = Sampling(ignore_eos=True)
    plans = [
        plan(sampling, choice=index, seed=index, room=tokens, mean_tokens=8)
        for index in range(choices)
    ]
    blocks = -(-(prompt_tokens + tokens * choices) // SETTINGS.block_tokens)
    return Task(
        key, prompt_tokens=prompt_tokens, blocks=blocks, choices=[words(each) for each in plans]
    )


def finish_order(batch: Batch) -> list[str]:
    """Run to the end; return the jobs as they began."""
    begun: list[str] = []

    def sink(key, _):
        if key not in begun:
            begun.append(key)

    while batch.has_work:
        batch.begin_step(0.0)
        batch.end_step(sink)
    return begun


def test_priority_goes_before_arrival():
    batch = Batch(msgspec.structs.replace(SETTINGS, max_streams=1))
    for key, priority in (
        ("batch", Priority.BATCH),
        ("first", Priority.DEFAULT),
        ("second", Priority.DEFAULT),
        ("quick", Priority.INTERACTIVE),
    ):
        batch.add(task(key), priority, 0.0)

    assert finish_order(batch) == ["quick", "first", "second", "batch"]


def test_a_long_prompt_spreads_over_steps():
    batch = Batch(SETTINGS)
    batch.add(task("long", prompt_tokens=20), Priority.DEFAULT, 0.0)
    pieces = []
    steps = 0
    while not pieces:
        steps += 1
        batch.begin_step(0.0)
        batch.end_step(lambda _, piece: pieces.append(piece))

    assert steps == 3


JOBS = st.lists(
    st.tuples(
        st.sampled_from(list(Priority)),
        st.integers(1, 30),
        st.integers(1, 12),
        st.integers(1, 4),
        st.integers(0, 6),
    ),
    max_size=20,
)


@given(JOBS, st.booleans())
def test_places_and_blocks_are_never_exceeded_and_all_comes(jobs, overcommit):
    batch = Batch(msgspec.structs.replace(SETTINGS, overcommit=overcommit))
    got: Counter[str] = Counter()
    wanted: dict[str, int] = {}
    for number, (priority, prompt_tokens, tokens, choices, cancel_after) in enumerate(jobs):
        key = str(number)
        made = task(key, prompt_tokens=prompt_tokens, tokens=tokens, choices=choices)
        if made.blocks > SETTINGS.total_blocks:
            continue
        batch.add(made, priority, 0.0)
        if cancel_after == 1:
            batch.remove(key)
        else:
            wanted[key] = tokens * choices
        for _ in range(cancel_after):
            batch.begin_step(0.0)
            load = batch.load(step=0, step_age_s=0.0)
            assert load.running <= SETTINGS.max_streams
            assert 0 <= load.free_blocks <= SETTINGS.total_blocks
            batch.end_step(lambda key, piece: got.update({key: len(piece.token_ids)}))
    while batch.has_work:
        batch.begin_step(0.0)
        batch.end_step(lambda key, piece: got.update({key: len(piece.token_ids)}))

    assert got == wanted
    load = batch.load(step=0, step_age_s=0.0)
    assert (0, 0, SETTINGS.total_blocks) == (load.running, load.waiting, load.free_blocks)


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        (TextPrompt(text="x" * 9), 3),
        (TextPrompt(text="你好"), 2),
        (TextPrompt(text=""), 1),
        (TokensPrompt(token_ids=[1, 2, 3]), 3),
        (ChatPrompt(messages_json=b"x" * 8, tools_json=b"y" * 4), 3),
    ],
)
def test_prompts_have_a_length(prompt, tokens):
    assert tokens == count_tokens(prompt)


def run_job(settings: FakeSettings, *jobs):
    """Run jobs to their end in virtual time; return the time it took and the pieces."""

    async def scenario():
        engine, pieces = FakeEngine(settings), Pieces()
        await engine.start(pieces)
        for job in jobs:
            await engine.submit(job)
        for job in jobs:
            await pieces.whole(job.key)
        took_s = asyncio.get_running_loop().time()
        await engine.stop()
        return took_s, pieces

    return run_virtual(scenario())


def test_time_is_prefill_and_steps():
    settings = FakeSettings(
        prefill_tokens_per_s=1000.0, step_s=0.01, stream_step_s=0.001, chunk_tokens=50
    )
    job = job_of(TokensPrompt(token_ids=[1] * 100), max_tokens=10, ignore_eos=True)

    took_s, _ = run_job(settings, job)

    # 100 ms of prefill over two steps, the second of which makes the first token; 11 ms for each step.
    assert took_s == pytest.approx(0.1 + 11 * 0.011)


def test_more_streams_make_longer_steps():
    settings = FakeSettings(prefill_tokens_per_s=1e9, step_s=0.01, stream_step_s=0.001)
    jobs = [job_of(max_tokens=100, ignore_eos=True) for _ in range(10)]

    took_s, _ = run_job(settings, *jobs)

    assert took_s == pytest.approx(100 * 0.02, rel=0.03)


def test_what_can_never_fit_the_pool_is_refused_with_the_numbers():
    settings = FakeSettings(total_blocks=10, block_tokens=16)

    with pytest.raises(RefusedError, match="the pool has 10") as caught:
        run_job(settings, job_of(max_tokens=200, ignore_eos=True))

    assert caught.value.reason is RefuseReason.TOO_LONG


def test_a_dead_engine_takes_no_job():
    async def scenario():
        engine = FakeEngine(FakeSettings())
        await engine.start(Pieces())
        engine.die("gone")
        with pytest.raises(EngineFailedError, match="gone"):
            await engine.submit(job_of())
        assert await engine.failed() == "gone"

    run_virtual(scenario())


def test_a_whole_conversation_with_a_tool_ends_as_a_call():
    tools = b'[{"type":"function","function":{"name":"now","parameters":{"type":"object"}}}]'
    prompt = ChatPrompt(messages_json=b"[]", tools_json=tools, tool_choice="required")
    job = job_of(prompt)

    _, pieces = run_job(FakeSettings(), job)

    last = pieces.of[job.key][-1]
    assert last.finish == "tool_calls"
    assert last.extra.usage.completion_tokens == len(pieces.of[job.key])


def test_a_step_that_fails_ends_the_engine_and_leaves_nobody_waiting():
    async def scenario() -> str:
        engine = FakeEngine(SETTINGS)
        await engine.start(_refuse)
        await engine.submit(job_of(TextPrompt(text="hello")))
        async with asyncio.timeout(10):
            return await engine.failed()

    assert "no room for it" in run_virtual(scenario())


def _refuse(key: str, piece: object) -> None:
    raise ValueError("no room for it")
