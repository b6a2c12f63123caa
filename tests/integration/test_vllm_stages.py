"""Where the time goes on real vLLM: the stages sum to the wall time, and say who held whom up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from services.engine.ports import Job, Piece
from shared.ids import EngineId
from shared.messages import ENGINE_STAGES, Spent, StepDetail, TokensPrompt
from tests.support.engine_rig import EngineRig, job_of

E1 = EngineId("e1")
PROMPT_TOKENS = 400
"""Long enough to take many decode steps' time, and within the context of the shared engine."""
SLACK_S = 0.02
"""What a busy machine may take to wake the test."""


def prompt_of(seed: int, length: int) -> TokensPrompt:
    """Return a prompt that no other test has."""
    return TokensPrompt(
        token_ids=[1000 + (seed * 7919 + place * 31) % 40_000 for place in range(length)]
    )


def spent_of(pieces: Sequence[Piece]) -> Spent:
    """Return what the last piece says; check that the first and the last one say something, and no other."""
    told = [piece.extra.spent if piece.extra else None for piece in pieces]
    assert told[0] is not None
    assert told[-1] is not None
    assert not any(told[1:-1])
    return told[-1]


def stages(spent: Spent) -> dict[str, float]:
    """Return the stages in seconds; they sum to the time of the stream."""
    assert abs(sum(spent.us) - (spent.until - spent.received_at) * 1e6) <= 1
    return {stage.value: us / 1e6 for stage, us in zip(ENGINE_STAGES, spent.us, strict=True)}


async def answered(rig: EngineRig, job: Job) -> tuple[Spent, float]:
    """Return what an answer says of its time, and how long it took as seen from here."""
    began = time.monotonic()
    pieces = await rig.answer(job)
    return spent_of(pieces), time.monotonic() - began


def test_the_stages_sum_to_the_wall_time_and_decode_is_most_of_a_long_answer(vllm_rig: EngineRig):
    job = job_of(prompt_of(1, 20), max_tokens=30, ignore_eos=True)

    spent, wall_s = vllm_rig.run(answered(vllm_rig, job))

    took = stages(spent)
    assert abs(sum(took.values()) - wall_s) < 0.01 * wall_s + SLACK_S
    assert took["decode"] > 0.5 * wall_s
    assert took["prefill"] > 0
    assert took["decode_wait"] == took["kv_load"] == 0
    assert (30, 20, 0) == (spent.decode_tokens, spent.prefill_tokens, spent.preemptions)
    assert 1.0 == spent.batch_size
    assert spent.kv_blocks >= 1
    assert spent.mode.endswith("/eager")
    assert spent.mode != "/eager"
    assert 30 == spent.last_step - spent.first_step + 1


def test_a_stream_that_a_long_prompt_holds_up_waits_and_says_for_whom(vllm_rig: EngineRig):
    async def scenario():
        stream = job_of(prompt_of(2, 8), max_tokens=40, ignore_eos=True)
        prompt = job_of(prompt_of(3, PROMPT_TOKENS), max_tokens=2, ignore_eos=True)
        streaming = asyncio.get_running_loop().create_task(answered(vllm_rig, stream))
        await vllm_rig.pieces.first(stream.key)
        blocker, _ = await answered(vllm_rig, prompt)
        spent, wall_s = await streaming

        took, prefill_s = stages(spent), stages(blocker)["prefill"]
        assert abs(sum(took.values()) - wall_s) < 0.01 * wall_s + SLACK_S
        assert took["decode_wait"] > 0.5 * prefill_s
        assert took["decode_wait"] < 1.1 * prefill_s
        assert [prompt.request] == [each.request for each in spent.blocked_by]
        assert spent.blocked_by[0].us == round(took["decode_wait"] * 1e6)

    vllm_rig.run(scenario())


def test_what_is_cached_is_told_and_not_computed(vllm_rig: EngineRig):
    async def scenario():
        prompt = prompt_of(4, 300)
        first, _ = await answered(vllm_rig, job_of(prompt, max_tokens=2))
        again, _ = await answered(vllm_rig, job_of(prompt, max_tokens=2))

        assert (0, 300) == (first.cached_tokens, first.prefill_tokens)
        assert again.cached_tokens >= 256
        assert 300 == again.cached_tokens + again.prefill_tokens

    vllm_rig.run(scenario())


def test_several_choices_are_one_account(vllm_rig: EngineRig):
    async def scenario():
        job = job_of(prompt_of(5, 30), n=2, max_tokens=20, ignore_eos=True, temperature=1.0)
        spent, wall_s = await answered(vllm_rig, job)

        took = stages(spent)
        assert abs(sum(took.values()) - wall_s) < 0.01 * wall_s + SLACK_S
        assert 40 == spent.decode_tokens
        assert 1.5 < spent.batch_size <= 2.0
        detail: StepDetail = vllm_rig.engine.book.detail(E1, job.request)
        assert [[0], [0]] == [[run.token for run in runs] for runs in detail.runs]

    vllm_rig.run(scenario())


def test_a_stop_string_ends_the_account_where_it_was_found(vllm_rig: EngineRig):
    async def scenario():
        plain = await vllm_rig.text(prompt_of(6, 12), max_tokens=24, temperature=0.0)
        stop = plain[len(plain) // 2 :][:4]
        job = job_of(prompt_of(6, 12), max_tokens=24, temperature=0.0, stop=(stop,))
        spent, wall_s = await answered(vllm_rig, job)

        took = stages(spent)
        assert abs(sum(took.values()) - wall_s) < 0.01 * wall_s + SLACK_S
        assert took["output_parse"] < 0.2 * wall_s
        assert spent.decode_tokens < 24

    vllm_rig.run(scenario())


def test_a_job_that_is_cut_off_can_be_asked_before(vllm_rig: EngineRig):
    async def scenario():
        job = job_of(prompt_of(7, 10), max_tokens=400, ignore_eos=True)
        began = time.monotonic()
        await vllm_rig.engine.submit(job)
        await vllm_rig.pieces.first(job.key)
        await asyncio.sleep(0.5)

        spent = vllm_rig.engine.spent(job.key)
        wall_s = time.monotonic() - began
        vllm_rig.engine.cancel(job.key)

        took = stages(spent)
        assert abs(sum(took.values()) - wall_s) < 0.01 * wall_s + SLACK_S
        assert took["decode"] > 0.3
        assert spent.decode_tokens > 1
        assert vllm_rig.engine.spent(job.key) is None
        assert vllm_rig.engine.book.detail(E1, job.request).is_known

    vllm_rig.run(scenario())
