"""Real vLLM behind the port, beyond the contract: vLLM's own answers, and the core seen from inside."""

from __future__ import annotations

import asyncio

import pytest

from shared.messages import Finish, Priority, TokensPrompt
from tests.support.engine_rig import EngineRig, job_of
from tests.support.vllm_rig import chat, imported_vllm, tokenizer_of, told

imported_vllm()

from vllm import SamplingParams  # noqa: E402 - after the switches that vLLM reads when it is imported
from vllm.sampling_params import RequestOutputKind  # noqa: E402

from services.engine.adapters.vllm_engine import _RANK  # noqa: E402

LONG = {"max_tokens": 400, "ignore_eos": True}


async def bare(rig: EngineRig, prompt: list[int], **sampling) -> list[list[int]]:
    """Return the tokens of each choice by vLLM's own `generate`."""
    params = SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY, **sampling)
    async for output in rig.engine._llm.generate(
        {"type": "token", "prompt_token_ids": prompt}, params, "bare"
    ):
        last = output
    return [list(choice.token_ids) for choice in last.outputs]


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0},
        # In full, since ours follow the model's own defaults and those of `SamplingParams` are vLLM's.
        {"temperature": 1.0, "top_p": 1.0, "seed": 11},
        {"temperature": 1.0, "top_p": 1.0, "n": 2, "seed": 12},
    ],
)
def test_the_tokens_are_those_of_vllm_itself(vllm_rig: EngineRig, sampling):
    prompt = [2000, 3000, 4000]

    async def scenario():
        job = job_of(TokensPrompt(token_ids=prompt), max_tokens=12, **sampling)
        pieces = await vllm_rig.answer(job)
        choices = [
            [token for piece in pieces if piece.choice == choice for token in piece.token_ids]
            for choice in range(job.sampling.n)
        ]

        assert await bare(vllm_rig, prompt, max_tokens=12, **sampling) == choices

    vllm_rig.run(scenario())


def test_several_choices_may_all_be_the_likeliest_one(vllm_rig: EngineRig):
    async def scenario():
        job = job_of(n=2, temperature=0.0, max_tokens=6)
        await vllm_rig.answer(job)

        assert vllm_rig.pieces.text(job.key, 0) == vllm_rig.pieces.text(job.key, 1)

    vllm_rig.run(scenario())


def test_wild_text_comes_in_whole_characters_and_completely(vllm_rig: EngineRig):
    async def scenario():
        jobs = [
            job_of(max_tokens=60, temperature=2.0, ignore_eos=True, seed=seed, logprobs=2)
            for seed in range(8)
        ]
        for job, pieces in zip(
            jobs, await asyncio.gather(*map(vllm_rig.answer, jobs)), strict=True
        ):
            ids = [token for piece in pieces for token in piece.token_ids]
            whole = tokenizer_of(vllm_rig).decode(ids, skip_special_tokens=True)
            bytes_ = b"".join(each.token_bytes for piece in pieces for each in piece.extra.logprobs)

            # A character that was not finished is not told; bytes that can never become one show as vLLM shows them.
            assert vllm_rig.pieces.text(job.key).rstrip("\ufffd") == whole.rstrip("\ufffd")
            assert tokenizer_of(vllm_rig).decode(ids) == bytes_.decode(errors="replace")

    vllm_rig.run(scenario())


def test_a_prompt_that_was_seen_before_counts_its_cached_tokens(vllm_rig: EngineRig):
    block = vllm_rig.limits.block_tokens
    prompt = TokensPrompt(token_ids=[7000 + index for index in range(2 * block + 10)])

    async def scenario():
        usages = [
            (await vllm_rig.answer(job_of(prompt, max_tokens=2)))[-1].extra.usage for _ in range(2)
        ]

        assert [0, 2 * block] == [usage.cached_tokens for usage in usages]

    vllm_rig.run(scenario())


def test_the_pool_tells_its_bytes_and_how_scattered_it_is(vllm_rig: EngineRig):
    limits = vllm_rig.limits
    model = vllm_rig.engine._llm.vllm_config.model_config  # type: ignore[attr-defined] # of our adapter
    parallel = vllm_rig.engine._llm.vllm_config.parallel_config  # type: ignore[attr-defined]
    # Keys and values, in the type of the model's activations.
    token_bytes = (
        2
        * model.get_num_layers(parallel)
        * model.get_num_kv_heads(parallel)
        * model.get_head_size()
        * model.dtype.itemsize
    )

    async def scenario():
        async with asyncio.TaskGroup() as group:
            group.create_task(vllm_rig.answer(job_of(max_tokens=60, ignore_eos=True)))
            while (load := vllm_rig.engine.load()).largest_free_run is None or not load.running:  # noqa: ASYNC110 - a load tells nobody
                await asyncio.sleep(0.01)

        assert limits.block_bytes == token_bytes * limits.block_tokens
        assert 1 <= load.free_runs
        # The few blocks of one answer may lie anywhere, in the middle too.
        assert limits.total_blocks / 4 < load.largest_free_run < limits.total_blocks
        assert load.largest_free_run <= load.free_blocks

    vllm_rig.run(scenario())


def test_a_stop_token_ends_the_answer_and_is_told(vllm_rig: EngineRig):
    async def scenario():
        first = (await bare(vllm_rig, [2000, 3000], max_tokens=3, temperature=0.0))[0]
        job = job_of(
            TokensPrompt(token_ids=[2000, 3000]),
            max_tokens=9,
            temperature=0.0,
            stop_token_ids=(first[2],),
        )
        pieces = await vllm_rig.answer(job)

        assert (Finish.STOP, first[2]) == (pieces[-1].finish, pieces[-1].extra.stop_reason)

    vllm_rig.run(scenario())


def test_a_logit_bias_rules(vllm_rig: EngineRig):
    async def scenario():
        pieces = await vllm_rig.answer(
            job_of(max_tokens=3, ignore_eos=True, logit_bias={345: 100.0})
        )

        assert [345] * 3 == [token for piece in pieces for token in piece.token_ids]

    vllm_rig.run(scenario())


# --- the core


async def steps_later(rig: EngineRig, count: int) -> None:
    """Return once the core has made so many more steps."""
    wanted = rig.engine.load().step + count
    async with asyncio.timeout(30):
        while rig.engine.load().step < wanted:  # noqa: ASYNC110 - the port tells no steps
            await asyncio.sleep(0.005)


def test_a_cancel_frees_the_core_within_a_step_or_two(vllm_rig: EngineRig):
    async def scenario():
        stays, goes = job_of(**LONG), job_of(n=3, **LONG)
        for job in (stays, goes):
            await vllm_rig.engine.submit(job)
            await vllm_rig.pieces.first(job.key)
        await steps_later(vllm_rig, 2)
        before = vllm_rig.engine._stats.running

        vllm_rig.engine.cancel(goes.key)
        await steps_later(vllm_rig, 3)
        after = vllm_rig.engine._stats.running
        vllm_rig.engine.cancel(stays.key)

        assert (4, 1) == (before, after)

    vllm_rig.run(scenario())


def test_a_cancel_while_the_prompt_is_tokenized_reaches_no_core(vllm_rig: EngineRig):
    async def scenario():
        job = job_of(chat("x " * 800), **LONG)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(told(vllm_rig.engine.submit(job)))
            await asyncio.sleep(0)
            vllm_rig.engine.cancel(job.key)
            refusal = await task

        assert "cancelled" in str(refusal)
        assert not vllm_rig.engine._llm.output_processor.has_unfinished_requests()

    vllm_rig.run(scenario())


def test_nothing_stays_in_vllms_front_after_all_kinds_of_ends(vllm_rig: EngineRig):
    async def scenario():
        jobs = [
            job_of(max_tokens=3),
            job_of(max_tokens=3, n=3),
            job_of(max_tokens=40, stop=("e", "a")),
        ]
        await asyncio.gather(*map(vllm_rig.answer, jobs))
        cancelled = job_of(n=2, **LONG)
        await vllm_rig.engine.submit(cancelled)
        vllm_rig.engine.cancel(cancelled.key)
        await asyncio.sleep(0.05)

        processor = vllm_rig.engine._llm.output_processor
        assert not processor.request_states
        assert not processor.external_req_ids
        assert not vllm_rig.engine._answers

    vllm_rig.run(scenario())


def test_priorities_reach_the_core(vllm_rig: EngineRig):

    policy = vllm_rig.engine._llm.vllm_config.scheduler_config.policy

    assert policy == "priority"
    assert _RANK[Priority.INTERACTIVE] < _RANK[Priority.DEFAULT] < _RANK[Priority.BATCH]


def test_no_prompt_is_logged(vllm_rig: EngineRig, capfd, caplog):
    secret = "xylophone-zebra-quixotic"

    async def scenario():
        await vllm_rig.answer(job_of(chat(secret), max_tokens=4))
        await told(vllm_rig.engine.submit(job_of(chat(secret), max_tokens=10**6)))
        await told(vllm_rig.engine.submit(job_of(secret, json_schema=b'{"type": "blub"}')))

    vllm_rig.run(scenario())
    written = capfd.readouterr()

    assert secret not in written.out + written.err + caplog.text
    assert "" == written.out
