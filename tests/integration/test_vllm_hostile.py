"""Requests that are meant to keep real vLLM busy: what is taken is built in time while others are served, the rest is refused at once."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from shared.messages import RefuseReason
from tests.support.engine_rig import EngineRig, job_of
from tests.support.vllm_rig import refused

BUILD_S = 90.0
"""For the largest of these grammars; it takes seconds on a machine with nothing else to do."""


def fields(count: int, **keywords: object) -> dict:
    return {
        "type": "object",
        "properties": {f"p{n}": {"type": "string", **keywords} for n in range(count)},
    }


EXPLODING = {
    "repeats that overlap": {"type": "string", "pattern": "^" + ".{0,32}x" * 4 + "$"},
    "repeats in repeats": {"type": "string", "pattern": "^(([a-z]{0,20}x){0,20}y){0,20}$"},
    "many formats": fields(200, format="uri"),
    "many lengths": fields(100, maxLength=1000),
    "many open patterns": fields(16, pattern=".*" + "[a-z]+" * 30),
    "objects of objects": {
        "type": "object",
        "properties": {f"q{n}": {"properties": {f"p{m}": {} for m in range(256)}} for n in range(15)},
    },
}  # fmt: skip


@pytest.mark.parametrize("what", EXPLODING)
def test_a_schema_that_would_explode_is_refused_at_once(vllm_rig: EngineRig, what):
    began = time.monotonic()
    refusal = refused(vllm_rig, job_of(json_schema=json.dumps(EXPLODING[what]).encode()))

    assert (RefuseReason.INVALID, "response_format") == (refusal.reason, refusal.param)
    assert "too long" in str(refusal)
    assert time.monotonic() - began < 2


def test_others_are_served_while_a_large_schema_is_built(vllm_rig: EngineRig):
    schema = json.dumps(fields(60, format="date-time")).encode()

    async def scenario():
        job = job_of(json_schema=schema, max_tokens=3)
        async with asyncio.timeout(BUILD_S), asyncio.TaskGroup() as group:
            building = group.create_task(vllm_rig.answer(job))
            assert await vllm_rig.text("hi", max_tokens=2)
            await building

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
