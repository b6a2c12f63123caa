"""A real engine whose pool holds one long request: what it says is what an engine with room for all says, and all of it comes."""

from __future__ import annotations

import asyncio
import random
import warnings
from pathlib import Path

import pytest

from services.engine.ports import Job
from services.engine.steps.step import Step
from shared.messages import TokensPrompt
from tests.support.engine_rig import EngineRig, job_of, started
from tests.support.vllm_rig import MAX_MODEL_LEN, settings_of

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

BLOCK = 32
BLOCK_BYTES = 1_474_560
"""Of SmolLM2-135M in float32."""
TOKENS = 8


def jobs() -> list[Job]:
    """Return long and short ones, some of which begin alike."""
    draw = random.Random(5)
    head = [draw.randrange(1000, 40_000) for _ in range(4 * BLOCK)]
    made = []
    for number in range(10):
        size = 500 if number % 4 == 0 else 40
        tail = [draw.randrange(1000, 40_000) for _ in range(size)]
        tokens = [*(head if number % 3 == 0 else []), *tail]
        # A draw after a chunk that is not the last one of its prompt must not count.
        chosen = {"temperature": 0.0} if number % 2 else {"temperature": 1.0, "seed": number}
        job = job_of(TokensPrompt(token_ids=tokens), max_tokens=TOKENS, ignore_eos=True, **chosen)
        made.append(job)
    return made


async def together(rig: EngineRig, asked: list[Job]) -> list[list[int]]:
    """Return the tokens of all answers, asked for at the same time."""
    answers = await asyncio.gather(*(rig.answer(job) for job in asked))
    return [[token for piece in pieces for token in piece.token_ids] for pieces in answers]


async def one_by_one(rig: EngineRig, asked: list[Job]) -> list[list[int]]:
    return [(await together(rig, [job]))[0] for job in asked]


def test_promises_change_no_token(vllm_rig: EngineRig, smollm2: Path):
    from services.engine.adapters.vllm_engine import VllmEngine  # noqa: PLC0415 - vLLM is imported by now

    steps: list[Step] = []
    settings = settings_of(
        smollm2,
        kv_cache_bytes=(MAX_MODEL_LEN // BLOCK + 4) * BLOCK_BYTES,
        max_num_batched_tokens=512,
        extra_args={"block_size": BLOCK},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = VllmEngine(settings)
        engine.book.listeners.append(steps.append)
        with started(engine) as rig:
            found = rig.run(together(rig, jobs()))
            idle = engine.load()

    assert vllm_rig.run(one_by_one(vllm_rig, jobs())) == found
    assert max(step.blocked for step in steps) > 0, "the pool was to be too small"
    assert [] == [ref for step in steps for ref in step.preempted]
    assert any(step.queued for step in steps)
    assert (0, 0) == (idle.promised_blocks, idle.blocked)
