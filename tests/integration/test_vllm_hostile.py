"""Requests that are meant to keep real vLLM busy: what is taken is built in time while others are served, the rest is refused at once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time

import pytest

from services.engine.ports import Job
from shared.messages import RefuseReason
from tests.support.engine_rig import EngineRig, job_of
from tests.support.vllm_rig import told

BUILD_S = 90.0
"""For the largest of these grammars; it takes seconds on a machine with nothing else to do."""


def fields(count: int, **keywords: object) -> dict:
    return {
        "type": "object",
        "properties": {f"p{n}": {"type": "string", **keywords} for n in range(count)},
    }


EXPLODING = {"type": "string", "pattern": "^(([a-z]{0,20}x){0,20}y){0,20}$"}
ORDINARY = {
    "a record": fields(20) | {"required": [f"p{n}" for n in range(20)]},
    "many optional fields": fields(256),
    "formats": fields(60, format="date-time"),
    "uuids": fields(30, pattern="^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"),
    "a list": {"type": "array", "items": fields(5), "maxItems": 8000},
    "a large enum": {"enum": [f"value {n}" for n in range(2048)]},
    "a tree": {"$defs": {"n": {"properties": {"l": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"},
}


def test_a_schema_that_explodes_is_refused_and_remembered_while_others_are_served(
    vllm_rig: EngineRig,
):
    schema = json.dumps(EXPLODING).encode()

    async def scenario() -> None:
        jobs = [job_of(json_schema=schema, max_tokens=3) for _ in range(2)]
        async with asyncio.timeout(BUILD_S), asyncio.TaskGroup() as group:
            answers = [group.create_task(ended(vllm_rig, job)) for job in jobs]
            assert await vllm_rig.text("hi", max_tokens=2)
        for answer in answers:
            reason, param, says = answer.result()
            assert (RefuseReason.INVALID, "response_format") == (reason, param)
            assert "to build" in says

        began = time.monotonic()
        refusal = await told(vllm_rig.engine.submit(job_of(json_schema=schema)))
        assert refusal is not None
        assert time.monotonic() - began < 1

    vllm_rig.run(scenario())


async def ended(rig: EngineRig, job: Job) -> tuple[RefuseReason | None, str | None, str]:
    """Submit a job that is at fault; return how that was said: by a refusal, or later by an error."""
    refusal = await told(rig.engine.submit(job))
    if refusal is not None:
        return refusal.reason, refusal.param, str(refusal)
    (piece,) = await rig.pieces.whole(job.key)
    assert piece.extra is not None
    assert piece.extra.error is not None
    error = piece.extra.error
    return None if error.retryable else RefuseReason.INVALID, error.param, error.message


@pytest.mark.parametrize("what", ORDINARY)
def test_an_ordinary_schema_is_taken_and_soon_known(vllm_rig: EngineRig, what):
    schema = json.dumps(ORDINARY[what]).encode()

    async def scenario() -> None:
        async with asyncio.timeout(BUILD_S):
            assert await vllm_rig.answer(job_of(json_schema=schema, max_tokens=3))

    vllm_rig.run(scenario())


def test_an_answer_whose_grammar_takes_long_is_accepted_and_begins_when_it_is_known(
    vllm_rig: EngineRig,
):
    builder = vllm_rig.engine._grammars._pid  # type: ignore[attr-defined] # of our adapter

    async def scenario() -> None:
        async with asyncio.timeout(BUILD_S):
            job = job_of(json_schema=b'{"enum": ["late"]}', max_tokens=9)
            os.kill(builder, signal.SIGSTOP)
            try:
                await vllm_rig.engine.submit(job)
                assert await vllm_rig.text("hi", max_tokens=2)
            finally:
                os.kill(builder, signal.SIGCONT)
            await vllm_rig.pieces.whole(job.key)
            assert vllm_rig.pieces.text(job.key) == '"late"'

    vllm_rig.run(scenario())


def test_the_longest_lists_of_stops_and_biases_are_obeyed(vllm_rig: EngineRig):
    async def scenario():
        stops = tuple("ab" * 127 + chr(0x4E00 + n) for n in range(16))
        biases = dict.fromkeys(range(1024), -100.0)
        async with asyncio.timeout(BUILD_S):
            text = await vllm_rig.text(
                "a" * 200, stop=stops, logit_bias=biases, ignore_eos=True, max_tokens=30
            )
        assert text

    vllm_rig.run(scenario())
