"""What every backend behind the engine port keeps: the fake, any OpenAI-compatible server, and real vLLM."""

from __future__ import annotations

import asyncio
import json
import math

import pytest

from services.engine.adapters.fake import FakeEngine
from services.engine.adapters.openai_url import OpenAiEngine
from services.engine.ports import InferenceEngine, RefusedError
from services.engine.settings import FakeSettings, OpenAiSettings
from shared.messages import (
    ChatPrompt,
    Finish,
    RefuseReason,
    TextPrompt,
    TokensPrompt,
)
from tests.support.engine_rig import EngineRig, is_last, job_of, refused
from tests.support.nats_server import free_port

HELLO = ChatPrompt(messages_json=b'[{"role": "user", "content": "Tell me about rivers."}]')
SETTLE_S = 0.5
"""Time in which a cancelled job could still make itself heard."""


def check_protocol(pieces, *, choices: int = 1) -> None:
    """Every choice ends once, nothing follows it, and the last piece of all carries the usage."""
    assert [is_last(piece) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1].extra.usage is not None
    for choice in range(choices):
        finishes = [piece.finish for piece in pieces if piece.choice == choice]
        assert finishes[-1] in {Finish.STOP, Finish.LENGTH}
        assert set(finishes[:-1]) <= {None}


def test_limits_are_told_at_the_start(engine_rig: EngineRig):
    limits = engine_rig.limits

    assert limits.max_model_len >= 512
    assert limits.max_streams >= 32
    assert limits.model
    assert (limits.total_blocks > 0) == (limits.block_tokens > 0) == engine_rig.tells_tokens


@pytest.mark.parametrize(
    "prompt",
    [HELLO, TextPrompt(text="Rivers flow to the"), TokensPrompt(token_ids=[100, 200, 300])],
    ids=["chat", "text", "tokens"],
)
def test_every_kind_of_prompt_gets_an_answer_with_its_usage(engine_rig: EngineRig, prompt):
    async def scenario():
        job = job_of(prompt, max_tokens=8, ignore_eos=True)

        prompt_tokens = await engine_rig.engine.submit(job)
        pieces = await engine_rig.pieces.whole(job.key)

        check_protocol(pieces)
        usage = pieces[-1].extra.usage
        assert usage.completion_tokens == 8
        assert pieces[-1].finish is Finish.LENGTH
        assert prompt_tokens > 0
        if engine_rig.tells_tokens:
            assert usage.prompt_tokens == prompt_tokens
            assert sum(len(piece.token_ids) for piece in pieces) == 8
        if isinstance(prompt, TokensPrompt):
            assert prompt_tokens == usage.prompt_tokens == 3

    engine_rig.run(scenario())


def test_an_answer_comes_piece_by_piece(engine_rig: EngineRig):
    async def scenario():
        pieces = await engine_rig.answer(job_of(max_tokens=20, ignore_eos=True))

        assert len([piece for piece in pieces if piece.text]) >= 10

    engine_rig.run(scenario())


def test_choices_are_told_apart(engine_rig: EngineRig):
    async def scenario():
        job = job_of(n=3, max_tokens=12, ignore_eos=True, temperature=1.0)
        pieces = await engine_rig.answer(job)

        check_protocol(pieces, choices=3)
        assert pieces[-1].extra.usage.completion_tokens == 36
        assert len({engine_rig.pieces.text(job.key, choice) for choice in range(3)}) > 1

    engine_rig.run(scenario())


def test_a_stop_string_ends_the_answer_and_does_not_show(engine_rig: EngineRig):
    async def scenario():
        plain = await engine_rig.text(TextPrompt(text="Rivers"), max_tokens=24, temperature=0.0)
        stop = plain[len(plain) // 3 :][:6]
        job = job_of(TextPrompt(text="Rivers"), max_tokens=24, temperature=0.0, stop=(stop, "\x00"))
        pieces = await engine_rig.answer(job)

        check_protocol(pieces)
        assert plain[: plain.index(stop)] == engine_rig.pieces.text(job.key)
        assert pieces[-1].finish is Finish.STOP
        assert pieces[-1].extra.stop_reason == stop

    engine_rig.run(scenario())


def test_ignore_eos_and_min_tokens_reach_their_counts(engine_rig: EngineRig):
    async def scenario():
        pieces = await engine_rig.answer(job_of(HELLO, max_tokens=90, ignore_eos=True))
        assert pieces[-1].extra.usage.completion_tokens == 90

        if engine_rig.tells_tokens:
            pieces = await engine_rig.answer(job_of(HELLO, max_tokens=90, min_tokens=90))
            assert pieces[-1].extra.usage.completion_tokens == 90

    engine_rig.run(scenario())


def test_a_seed_gives_the_same_answer_again(engine_rig: EngineRig):
    async def scenario():
        wanted = {"max_tokens": 16, "temperature": 1.0, "ignore_eos": True}
        prompt = TextPrompt(text="Once upon a time")

        texts = [await engine_rig.text(prompt, seed=seed, **wanted) for seed in (7, 7, 8)]

        assert texts[0] == texts[1]
        assert texts[0] != texts[2]

    engine_rig.run(scenario())


@pytest.mark.parametrize("alternatives", [0, 3])
@pytest.mark.parametrize("prompt", [HELLO, TextPrompt(text="Rivers")], ids=["chat", "text"])
def test_logprobs_belong_to_the_tokens(engine_rig: EngineRig, prompt, alternatives):
    async def scenario():
        job = job_of(prompt, max_tokens=6, ignore_eos=True, logprobs=alternatives)
        pieces = await engine_rig.answer(job)
        logprobs = [each for piece in pieces if piece.extra for each in piece.extra.logprobs or ()]

        assert len(logprobs) == 6
        whole = b"".join(each.token_bytes for each in logprobs)
        assert whole.decode(errors="ignore").strip() == engine_rig.pieces.text(job.key).strip()
        for each in logprobs:
            assert each.logprob <= 0
            assert len(each.top) >= alternatives
            assert sum(math.exp(top.logprob) for top in each.top) <= 1.001

    engine_rig.run(scenario())


def test_no_logprobs_unless_asked_for(engine_rig: EngineRig):
    async def scenario():
        pieces = await engine_rig.answer(job_of(max_tokens=4))

        assert all(piece.extra is None or piece.extra.logprobs is None for piece in pieces)

    engine_rig.run(scenario())


def test_no_piece_has_half_a_character(engine_rig: EngineRig):
    async def scenario():
        said = "🙂 你好, été 👩‍🔬"
        schema = json.dumps({"const": said}).encode()
        job = job_of(HELLO, json_schema=schema, max_tokens=200, temperature=0.0)
        pieces = await engine_rig.answer(job)

        assert all("\ufffd" not in piece.text for piece in pieces)
        assert said == json.loads(engine_rig.pieces.text(job.key))

    engine_rig.run(scenario())


# --- refusals


def test_an_answer_beyond_the_context_is_refused_with_the_numbers(engine_rig: EngineRig):
    context = engine_rig.limits.max_model_len

    refusal = refused(engine_rig, job_of(max_tokens=context))

    assert refusal.reason is RefuseReason.TOO_LONG
    assert str(context) in str(refusal)
    assert "maximum context length" in str(refusal)


def test_a_prompt_beyond_the_context_is_refused(engine_rig: EngineRig):
    words = "river " * (engine_rig.limits.max_model_len * 4)

    assert refused(engine_rig, job_of(words)).reason is RefuseReason.TOO_LONG


def test_what_the_backend_cannot_do_is_refused_by_name(engine_rig: EngineRig):
    if engine_rig.unsupported is not None:
        refusal = refused(engine_rig, engine_rig.unsupported)

        assert refusal.reason is RefuseReason.UNSUPPORTED


def test_a_key_in_use_is_refused(engine_rig: EngineRig):
    async def scenario():
        job = job_of(max_tokens=200, ignore_eos=True)
        await engine_rig.engine.submit(job)
        with pytest.raises(RefusedError) as caught:
            await engine_rig.engine.submit(job)
        engine_rig.engine.cancel(job.key)

        assert caught.value.reason is RefuseReason.INVALID

    engine_rig.run(scenario())


# --- cancels


async def is_idle(rig: EngineRig) -> bool:
    """Return whether the backend runs nothing, which it may take a step or two to notice."""
    for _ in range(100):
        load = rig.engine.load()
        if (load.running, load.waiting) == (0, 0):
            return True
        await asyncio.sleep(0.05)
    return False


def test_nothing_comes_after_a_cancel(engine_rig: EngineRig):
    async def scenario():
        job = job_of(max_tokens=400, ignore_eos=True, n=2)
        await engine_rig.engine.submit(job)
        await engine_rig.pieces.first(job.key)
        assert engine_rig.engine.load().running >= 1

        engine_rig.engine.cancel(job.key)
        count = len(engine_rig.pieces.of[job.key])
        await asyncio.sleep(SETTLE_S)

        assert len(engine_rig.pieces.of[job.key]) == count
        assert await is_idle(engine_rig)
        engine_rig.engine.cancel(job.key)

    engine_rig.run(scenario())


def test_a_cancel_while_it_is_submitted_ends_it(engine_rig: EngineRig):
    async def scenario():
        job = job_of(HELLO, max_tokens=400, ignore_eos=True)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(swallow_refusal(engine_rig.engine.submit(job)))
            await asyncio.sleep(0)
            engine_rig.engine.cancel(job.key)
            async with asyncio.timeout(10):
                await task
        count = len(engine_rig.pieces.of[job.key])
        await asyncio.sleep(SETTLE_S)

        assert len(engine_rig.pieces.of[job.key]) == count
        assert await is_idle(engine_rig)

    engine_rig.run(scenario())


@pytest.mark.parametrize("gives_up_s", [0, 0.002, 0.02])
def test_a_submit_whose_caller_gives_up_leaves_nothing(engine_rig: EngineRig, gives_up_s):
    async def scenario():
        job = job_of(HELLO, max_tokens=400, ignore_eos=True)
        try:
            async with asyncio.timeout(gives_up_s):
                await engine_rig.engine.submit(job)
        except TimeoutError:
            pass
        else:
            assert gives_up_s > 0
            engine_rig.engine.cancel(job.key)
        count = len(engine_rig.pieces.of[job.key])
        await asyncio.sleep(SETTLE_S)

        assert len(engine_rig.pieces.of[job.key]) == count
        assert await is_idle(engine_rig)

    engine_rig.run(scenario())


def test_a_cancel_after_a_submit_that_was_given_up_does_no_harm(engine_rig: EngineRig):
    async def scenario():
        job, other = job_of(max_tokens=400), job_of(max_tokens=8, ignore_eos=True)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await engine_rig.engine.submit(job)
        engine_rig.engine.cancel(job.key)

        check_protocol(await engine_rig.answer(other))

    engine_rig.run(scenario())


async def swallow_refusal(submit) -> None:
    """A submit that is cancelled meanwhile may return or be refused."""
    try:
        await submit
    except RefusedError:
        return


def test_unknown_keys_are_ignored(engine_rig: EngineRig):
    async def scenario():
        engine_rig.engine.cancel("nobody:1")

    engine_rig.run(scenario())


@pytest.mark.parametrize("kind", ["fake", "openai"])
def test_a_start_that_is_interrupted_leaves_nothing_once_stopped(kind):
    async def scenario():
        engine = slow_to_start(kind)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await engine.start(lambda *_: None)
        await engine.stop()
        await engine.stop()

        assert {asyncio.current_task()} == asyncio.all_tasks()

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["fake", "openai"])
def test_stopping_what_was_never_started_changes_nothing(kind):
    asyncio.run(slow_to_start(kind).stop())


def slow_to_start(kind: str) -> InferenceEngine:
    """A backend that is not ready for a while; real vLLM is in `tests/integration/test_vllm_death.py`."""
    if kind == "fake":
        return FakeEngine(FakeSettings(start_s=60.0))
    return OpenAiEngine(OpenAiSettings(url=f"http://127.0.0.1:{free_port()}/v1"))


# --- load


def test_32_jobs_at_once_all_come_whole(engine_rig: EngineRig):
    async def scenario():
        jobs = [job_of(f"River {number}", max_tokens=8, ignore_eos=True) for number in range(32)]
        answers = await asyncio.gather(*map(engine_rig.answer, jobs))

        for pieces in answers:
            check_protocol(pieces)
            assert pieces[-1].extra.usage.completion_tokens == 8
        assert await is_idle(engine_rig)

    engine_rig.run(scenario())


def test_steps_count_up_and_an_idle_engine_has_no_age(engine_rig: EngineRig):
    async def scenario():
        assert await is_idle(engine_rig)
        before = engine_rig.engine.load()
        await engine_rig.answer(job_of(max_tokens=8, ignore_eos=True))
        assert await is_idle(engine_rig)
        after = engine_rig.engine.load()

        assert before.step_age_s == after.step_age_s == 0.0
        assert after.step > before.step
        assert after.free_blocks == before.free_blocks

    engine_rig.run(scenario())
