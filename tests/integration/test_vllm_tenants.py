"""The oracle: one tenant asks another's prompt on real vLLM, and learns nothing from counts or times unless they share."""

from __future__ import annotations

import random
import statistics
import time

import msgspec
import pytest

from services.engine.ports import Job
from shared.messages import TokensPrompt
from tests.support.engine_rig import EngineRig, job_of

pytestmark = pytest.mark.vllm

PROMPT_TOKENS = 512
ROUNDS = 3


def asked(rig: EngineRig, tokens: list[int], salt: str) -> tuple[int, float]:
    """Return the cached tokens that a tenant is told of, and its time to the first token in seconds."""
    job: Job = msgspec.structs.replace(
        job_of(TokensPrompt(token_ids=tokens), max_tokens=1, temperature=0.0, ignore_eos=True),
        prefix_salt=salt,
    )
    began = time.monotonic()
    pieces = rig.run(rig.answer(job))
    return pieces[-1].extra.usage.cached_tokens, time.monotonic() - began


def prompt(seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(1000, 40_000) for _ in range(PROMPT_TOKENS)]


def test_a_tenant_learns_nothing_of_anothers_prompts(vllm_rig: EngineRig):
    unseen, others, own = [], [], []
    for seed in range(ROUNDS):
        secret = prompt(seed)
        cached, took_s = asked(vllm_rig, prompt(1000 + seed), "tenant b")
        assert 0 == cached
        unseen.append(took_s)
        assert 0 == asked(vllm_rig, secret, "tenant a")[0]

        cached, took_s = asked(vllm_rig, secret, "tenant b")
        assert 0 == cached
        others.append(took_s)
        cached, took_s = asked(vllm_rig, secret, "tenant a")
        assert cached > PROMPT_TOKENS // 2
        own.append(took_s)

    # A hit is several times as fast: one would show at once.
    assert max(own) < min(unseen)
    assert statistics.median(others) > 0.7 * statistics.median(unseen)
    assert min(others) > max(own)


def test_where_tenants_share_the_hit_is_there(vllm_rig: EngineRig):
    text = prompt(77)

    assert 0 == asked(vllm_rig, text, "")[0]
    assert asked(vllm_rig, text, "")[0] > PROMPT_TOKENS // 2
