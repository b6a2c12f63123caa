"""The tiers below vLLM's own scheduler, without a model: when a request waits for disk, what is told of it, and what ends its waiting."""

from __future__ import annotations

import time
from typing import Any

import pytest

from services.engine.settings import KvSettings
from services.engine.steps.step import Step
from tests.support.memory_store import MemoryStore
from tests.support.vllm_rig import imported_vllm

imported_vllm()

from vllm.config import KVTransferConfig  # noqa: E402 - after the switches that vLLM reads when it is imported
from vllm.v1.kv_offload.base import make_offload_key  # noqa: E402

from services.engine.adapters import kv_config  # noqa: E402
from services.engine.adapters.kv_connector import CopyNews  # noqa: E402
from services.engine.adapters.kv_tier import StoreTier  # noqa: E402
from tests.support.vllm_core import BLOCK, Core, tiny_model  # noqa: E402

SLOT_BYTES = 4096
PROMPT = 60
WHOLE = PROMPT // BLOCK * BLOCK
PATIENT_S = 10.0


class Rig:
    """A scheduler whose worker copies at once."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.steps: list[Step] = []

    @property
    def tier(self) -> StoreTier:
        (tier,) = self.core.scheduler.connector.scheduler.manager.secondary_tiers
        assert isinstance(tier, StoreTier)
        return tier

    def step(self, *, fails: bool = False) -> Step:
        """Make a step; its copies have been made at its end, or have failed."""
        output = self.core.begin()
        told: Any = output.kv_connector_metadata
        jobs = {*told.load_jobs, *told.store_jobs}
        copies = CopyNews(dict.fromkeys(jobs, 1), failed_jobs=jobs if fails else set())
        loaded = [job.req_id for job in told.load_jobs.values()]
        self.steps.append(self.core.end(output, loaded=loaded, copies=copies if jobs else None))
        return self.steps[-1]

    def until(self, is_so: Any) -> None:
        """Make steps until one is so."""
        ends_at = time.monotonic() + PATIENT_S
        while not is_so(self.step()):
            assert time.monotonic() < ends_at, self.steps[-3:]
            time.sleep(0.002)

    def keys_of(self, name: str) -> list[bytes]:
        """Return the keys of a request's whole blocks."""
        request = self.core.scheduler.requests[name]
        return [make_offload_key(each, 0) for each in request.block_hashes]


@pytest.fixture
def store(tmp_path):
    made = MemoryStore(tmp_path / "store")
    yield made
    made.answers.set()
    made.close()


@pytest.fixture
def rig(tmp_path, store):
    (tmp_path / "model").mkdir()
    model = tiny_model(tmp_path / "model")
    (model / "model.safetensors").write_bytes(b"weights")
    kv = KvSettings(
        host_bytes=16 * SLOT_BYTES, store=str(store.path), min_tokens=0, load_s=0.3, drain_s=0.1
    )
    transfer = kv_config.transfer_args(kv)["kv_transfer_config"]
    transfer["kv_connector_extra_config"]["secondary_tiers"][0]["told"] = {"vllm": "test"}
    core = Core(model, is_async=False, connects=KVTransferConfig(**transfer))
    made = Rig(core)
    made.until(lambda _: made.tier._client is not None)
    yield made
    core.scheduler.connector.shutdown()


def saved(rig: Rig, store: MemoryStore) -> None:
    """Have a prompt computed and saved, and all else forgotten."""
    rig.core.add("first", PROMPT, tokens=2)
    keys = rig.keys_of("first")
    rig.until(lambda _: len(rig.tier._keys) == len(keys))
    rig.core.abort("first")
    rig.until(lambda _: not rig.core.scheduler.requests)
    forget(rig)
    rig.steps.clear()


def forget(rig: Rig) -> None:
    rig.until(lambda _: rig.core.scheduler.reset_prefix_cache(reset_connector=True))


def ask(rig: Rig, name: str) -> None:
    """Add a request with the prompt that was saved."""
    ids = [hash("first") % 1000 + place for place in range(PROMPT)]
    rig.core.add(name, ids)


def test_a_prompt_waits_for_its_blocks_and_says_that_they_came_from_disk(rig, store):
    saved(rig, store)
    ask(rig, "a")
    rig.until(lambda step: step.prefills)

    (chunk,) = rig.steps[-1].prefills
    assert ("a", PROMPT - WHOLE, WHOLE, 0, WHOLE) == (
        chunk.ref,
        chunk.tokens,
        chunk.cached,
        chunk.host,
        chunk.disk,
    )
    assert ["a"] == rig.steps[0].loading
    assert ["a"] == [ref for step in rig.steps for ref in step.loaded]
    assert WHOLE // BLOCK * SLOT_BYTES == sum(step.kv.from_disk for step in rig.steps if step.kv)


def test_one_that_waits_in_vain_waits_for_a_load_no_longer(rig, store):
    saved(rig, store)
    store.answers.clear()
    ask(rig, "a")
    rig.until(lambda step: step.prefills)

    loading = [ref for step in rig.steps for ref in step.loading]
    loaded = [ref for step in rig.steps for ref in step.loaded]
    assert (["a"], ["a"]) == (loading, loaded)
    assert PROMPT == rig.steps[-1].prefills[0].tokens
    assert 1 == sum(step.kv.given_up for step in rig.steps if step.kv)


def test_while_a_load_lasts_its_blocks_are_not_looked_up_again(rig, store):
    saved(rig, store)
    store.answers.clear()
    ask(rig, "a")
    rig.step()
    manager = rig.core.scheduler.connector.scheduler.manager
    asked: list[object] = []
    lookup = manager.lookup
    manager.lookup = lambda *given: asked.append(given) or lookup(*given)
    for _ in range(3):
        rig.step()

    assert manager.is_loading("a")
    assert [] == asked
    store.answers.set()
    rig.until(lambda step: step.prefills)
    assert len(asked) == WHOLE // BLOCK


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_request_that_leaves_during_its_load_leaves_nothing_behind(rig, store, is_reset):
    saved(rig, store)
    store.answers.clear()
    ask(rig, "a")
    rig.step()
    rig.core.abort("a")
    if is_reset:
        assert rig.core.scheduler.reset_prefix_cache(reset_connector=True)
    store.answers.set()
    rig.until(lambda _: rig.tier.jobs.is_idle)
    rig.step()

    connector = rig.core.scheduler.connector
    assert set() == connector._waiting
    assert {} == rig.tier._asking == rig.tier._loading == rig.tier._expected
    assert {} == connector.scheduler._req_status
    assert 16 == connector.scheduler.manager.primary_tier._get_num_free_chunks() + len(
        connector.scheduler.manager.primary_tier._policy.chunks
    )


def test_a_copy_into_host_memory_that_failed_is_neither_kept_nor_saved(rig, store):
    rig.core.add("a", PROMPT, tokens=2)
    for _ in range(4):
        rig.step(fails=True)

    assert {} == rig.core.scheduler.connector.scheduler.manager.primary_tier._policy.chunks
    assert [] == store.seen
