"""Where the time of a job went, as each backend tells: with its first piece and its last, and whenever asked."""

from __future__ import annotations

import asyncio
import time

import pytest

from shared.messages import (
    ENGINE_STAGES,
    ChatPrompt,
    Spent,
    Stage,
)
from tests.support.engine_rig import EngineRig, job_of, refused

HELLO = ChatPrompt(messages_json=b'[{"role": "user", "content": "Tell me about rivers."}]')
PREFILL, DECODE = ENGINE_STAGES.index(Stage.PREFILL), ENGINE_STAGES.index(Stage.DECODE)
SLACK_US = 20_000
"""What a busy machine may take to wake the test."""


def check_sum(spent: Spent) -> None:
    """Nothing is negative, and the stages are all of the time."""
    assert all(us >= 0 for us in spent.us)
    assert abs(sum(spent.us) - (spent.until - spent.received_at) * 1e6) <= 1


@pytest.mark.parametrize("choices", [1, 2])
def test_the_first_and_the_last_piece_say_where_the_time_went(engine_rig: EngineRig, choices):
    async def scenario():
        began = time.monotonic()
        job = job_of(HELLO, n=choices, max_tokens=12, ignore_eos=True)
        pieces = await engine_rig.answer(job)
        wall_s = time.monotonic() - began

        told = [piece.extra.spent if piece.extra else None for piece in pieces]
        assert not any(told[1:-1])
        first, last = told[0], told[-1]
        for spent in (first, last):
            check_sum(spent)
            assert began <= spent.received_at <= spent.until <= began + wall_s
        assert first.us[PREFILL] > 0
        assert last.us[PREFILL] >= first.us[PREFILL]
        assert last.us[DECODE] > 0
        assert last.decode_tokens == pieces[-1].extra.usage.completion_tokens
        assert (last.first_step > 0) == engine_rig.tells_tokens
        assert sum(last.us) > 0.95e6 * wall_s - SLACK_US

    engine_rig.run(scenario())


def test_a_job_that_runs_can_be_asked_where_its_time_went(engine_rig: EngineRig):
    async def scenario():
        job = job_of(HELLO, max_tokens=400, ignore_eos=True)
        await engine_rig.engine.submit(job)
        await engine_rig.pieces.first(job.key)
        await asyncio.sleep(0.05)

        spent = engine_rig.engine.spent(job.key)
        engine_rig.engine.cancel(job.key)

        check_sum(spent)
        assert spent.us[DECODE] > 0
        assert spent.decode_tokens > 0
        assert engine_rig.engine.spent(job.key) is None

    engine_rig.run(scenario())


def test_what_was_refused_or_never_there_has_no_account(engine_rig: EngineRig):
    refused(engine_rig, job := job_of(max_tokens=engine_rig.limits.max_model_len))

    assert engine_rig.engine.spent(job.key) is None
    assert engine_rig.engine.spent("nobody:1") is None
