"""The KV tiers on real vLLM with a real store: answers are those of a recompute, whatever tier a prefix came from.

The store is stopped, killed and left in the middle of loads meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from services.engine.settings import KvSettings
from services.engine.steps.step import Step
from shared.messages import ENGINE_STAGES, WARM_L3, Stage, TokensPrompt
from shared.prefixes import unpacked
from tests.support.engine_rig import EngineRig, job_of, started
from tests.support.kv_store_process import KvStoreProcess
from tests.support.vllm_rig import imported_vllm, settings_of

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(240)]

BLOCK = 32
BLOCK_BYTES = BLOCK * 46_080
"""Of SmolLM2 in float32."""
POOL = 48
HOST = 32
PROMPT = 12 * BLOCK + 20
CACHED = 12 * BLOCK
ANSWER = 8
LOAD_S = 1.0
KV_LOAD = ENGINE_STAGES.index(Stage.KV_LOAD)

_seeds = itertools.count(1)


class Told(NamedTuple):
    text: str
    cached: int
    host: int
    disk: int
    kv_load_us: int


@contextmanager
def engine(model: Path, store: KvStoreProcess) -> Iterator[EngineRig]:
    imported_vllm()
    from services.engine.adapters.vllm_engine import VllmEngine  # noqa: PLC0415 - ten seconds

    kv = KvSettings(
        host_bytes=HOST * BLOCK_BYTES, store=str(store.path), min_tokens=0, load_s=LOAD_S
    )
    settings = settings_of(model, kv_cache_bytes=POOL * BLOCK_BYTES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with started(VllmEngine(settings, kv=kv)) as rig:
            yield rig


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KvStoreProcess]:
    made = KvStoreProcess(tmp_path_factory.mktemp("kv")).start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def rig(smollm2: Path, store: KvStoreProcess) -> Iterator[EngineRig]:
    with engine(smollm2, store) as made:
        yield made


def new_prompt(tokens: int = PROMPT) -> TokensPrompt:
    """Return a prompt that no engine has seen."""
    drawn = random.Random(next(_seeds))
    return TokensPrompt(token_ids=[drawn.randrange(1000, 20_000) for _ in range(tokens)])


def job_for(prompt: TokensPrompt, tokens: int = ANSWER):
    return job_of(prompt, temperature=0.0, max_tokens=tokens, ignore_eos=True)


def ask(rig: EngineRig, prompt: TokensPrompt) -> Told:
    """Return the answer, and where its prompt's blocks came from."""
    job = job_for(prompt)
    pieces = rig.run(rig.answer(job))
    extra = pieces[-1].extra
    spent = extra.spent
    assert extra.usage.cached_tokens == spent.cached_tokens
    return Told(
        rig.pieces.text(job.key),
        extra.usage.cached_tokens,
        spent.host_tokens,
        spent.disk_tokens,
        spent.us[KV_LOAD],
    )


def forget(rig: EngineRig, *, host: bool) -> None:
    """Empty the pool, and with `host` L2 too."""
    llm = rig.engine._llm  # type: ignore[attr-defined] # of our adapter

    async def reset() -> None:
        # A block that is being saved is in use.
        async with asyncio.timeout(20):
            while not await llm.reset_prefix_cache(reset_connector=host):  # noqa: ASYNC110 - vLLM tells nobody when it could
                await asyncio.sleep(0.05)

    rig.run(reset())


def computed(rig: EngineRig) -> tuple[TokensPrompt, str]:
    """Return a new prompt and its answer, which is on disk from now on."""
    prompt = new_prompt()
    told = ask(rig, prompt)
    assert 0 == told.cached
    ends_at = time.monotonic() + 20
    while ask_disk(rig, prompt) is None:
        assert time.monotonic() < ends_at, "it is not on disk"
    return prompt, told.text


def ask_disk(rig: EngineRig, prompt: TokensPrompt) -> Told | None:
    """Return the answer once all that can be comes from disk."""
    forget(rig, host=True)
    told = ask(rig, prompt)
    return told if told.disk == CACHED else None


def test_blocks_come_back_from_host_memory(rig):
    prompt = new_prompt()
    first = ask(rig, prompt)
    forget(rig, host=False)
    again = ask(rig, prompt)

    assert (first.text, CACHED, CACHED, 0) == again[:4]
    assert again.kv_load_us > 0


def test_blocks_that_others_pushed_out_of_pool_and_host_memory_come_back_from_disk(rig):
    prompt = new_prompt()
    first = ask(rig, prompt)
    for _ in range(4):
        ask(rig, new_prompt())
    again = ask(rig, prompt)

    assert (first.text, CACHED) == again[:2]
    assert again.disk > 0
    assert again.kv_load_us > 0


def test_steps_tell_which_blocks_of_prompts_are_on_disk(rig):
    on_disk, of_prompts = set(), set()

    def listen(step: Step) -> None:
        for moved in step.blocks.moved if step.blocks else ():
            if moved.tier == WARM_L3 and moved.is_there:
                on_disk.update(unpacked(moved.hashes))
        for prompt in step.blocks.prompts if step.blocks else ():
            of_prompts.update(unpacked(prompt.hashes))

    rig.engine.book.listeners.append(listen)
    try:
        prompt, _ = computed(rig)
        ask(rig, prompt)
    finally:
        rig.engine.book.listeners.remove(listen)
    assert CACHED // BLOCK == len(on_disk & of_prompts)


def test_another_engine_loads_what_this_one_computed(rig, store, smollm2):
    prompt, text = computed(rig)
    with engine(smollm2, store) as other:
        told = ask(other, prompt)

    assert (text, CACHED, 0, CACHED) == told[:4]


def test_a_store_that_stands_still_stops_nobody_and_costs_one_deadline(rig, store):
    prompt, text = computed(rig)
    forget(rig, host=True)

    async def scenario() -> tuple[list[float], float, str]:
        running, loading = job_for(new_prompt(20), tokens=200), job_for(prompt)
        await rig.engine.submit(running)
        await rig.pieces.first(running.key)
        store.signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            await rig.engine.submit(loading)
            at = []
            while time.monotonic() - began < 0.8 * LOAD_S:
                before = len(rig.pieces.of[running.key])
                await asyncio.sleep(0.005)
                if len(rig.pieces.of[running.key]) > before:
                    at.append(time.monotonic() - began)
            await rig.pieces.first(loading.key)
            waited = time.monotonic() - began
        finally:
            store.signal(signal.SIGCONT)
        await rig.pieces.whole(loading.key)
        rig.engine.cancel(running.key)
        return at, waited, rig.pieces.text(loading.key)

    at, waited, said = rig.run(scenario())

    gaps = [later - earlier for earlier, later in itertools.pairwise([0.0, *at])]
    assert max(gaps) < LOAD_S / 2
    assert len(at) >= 4
    assert LOAD_S < waited
    assert text == said


def test_a_load_that_its_request_did_not_wait_for_leaves_nothing_half_filled(rig, store):
    prompt, text = computed(rig)
    forget(rig, host=True)

    async def scenario() -> None:
        loading = job_for(prompt)
        store.signal(signal.SIGSTOP)
        try:
            await rig.engine.submit(loading)
            await asyncio.sleep(0.1)
            rig.engine.cancel(loading.key)
            await asyncio.sleep(0.1)
        finally:
            store.signal(signal.SIGCONT)

    rig.run(scenario())
    others = [new_prompt(), new_prompt()]
    said = [ask(rig, other).text for other in others]

    assert text == ask(rig, prompt).text
    assert said == [ask(rig, other).text for other in others]
    forget(rig, host=True)
    assert said == [ask(rig, other).text for other in others]
