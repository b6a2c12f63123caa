"""The tiers of an engine on vLLM's own manager and memory, and a store that misbehaves: nothing stale is usable, nobody waits long."""

from __future__ import annotations

import pytest

from tests.support.kv_store_process import KvStoreProcess
from tests.support.memory_store import MemoryStore
from tests.support.vllm_rig import imported_vllm

imported_vllm()

from vllm.v1.kv_offload.base import (  # noqa: E402 - after the switches that vLLM reads when it is imported
    LookupResult,
    Medium,
    make_offload_key,
)
from vllm.v1.kv_offload.config import OffloadingGroupConfig  # noqa: E402

from tests.support.kv_tiers_rig import (  # noqa: E402
    KvRig,
    kv_rig,
    names_in_memory,
    saved,
    settings,
    weights,
    wholly,
)


@pytest.fixture
def model(tmp_path):
    return weights(tmp_path / "model")


@pytest.fixture
def store(tmp_path):
    made = MemoryStore(tmp_path / "store")
    yield made
    made.answers.set()
    made.close()


# --- L2


def test_blocks_come_back_from_l2_as_they_were(model):
    with kv_rig(model, settings()) as rig:
        asked = rig.begin("a", "b")
        rig.write(0, 10)
        rig.write(1, 20)
        assert rig.store(asked, 0, 1)
        rig.load(asked, 5, 4)

        assert [LookupResult.HIT] * 2 == rig.lookup(asked)
        assert [wholly(10), wholly(20)] == [rig.read(5), rig.read(4)]


def test_l2_has_no_name_once_it_is_mapped_so_that_a_kill_leaves_nothing(model):
    with kv_rig(model, settings()):
        assert [] == names_in_memory()


def test_a_copy_into_l2_that_fails_is_no_block(model):
    with kv_rig(model, settings()) as rig:
        asked = rig.begin("a")
        rig.store(asked, 10_000)  # no such block of the pool

        assert [LookupResult.MISS] == rig.lookup(asked)
        rig.write(0, 10)
        assert rig.store(asked, 0)
        assert [LookupResult.HIT] == rig.lookup(asked)


def test_a_copy_out_of_l2_that_fails_tells_its_blocks(model):
    with kv_rig(model, settings()) as rig:
        asked = rig.begin("a")
        rig.store(asked, 0)
        rig.load(asked, 10_000)

        assert {10_000} == rig.mover.take_failed_blocks()
        assert set() == rig.mover.take_failed_blocks()


# --- L3


def test_a_prefix_that_one_engine_saved_is_loaded_by_another(model, store):
    with kv_rig(model, settings(store)) as one, kv_rig(model, settings(store)) as other:
        saved(one.connected(), store, "a", "b")
        other.until(lambda: len(other.tier._keys) == 2)
        asked = other.begin("a", "b", "c")

        assert 2 == other.look_until_known(asked)
        other.load(asked, 7, 8)
        assert [wholly(10), wholly(20)] == [other.read(7), other.read(8)]


def told_of_disk(rig: KvRig) -> list[tuple[bool, int]]:
    """Return what the tiers tell of the disk: whether blocks are gone, and how many."""
    events = list(rig.manager.take_events())
    return [(each.removed, len(each.keys)) for each in events if each.medium is Medium.STORAGE]


def test_what_is_on_disk_is_told_whoever_saved_it_and_again_when_it_is_gone(model, store):
    with kv_rig(model, settings(store)) as one, kv_rig(model, settings(store)) as other:
        one.tier.settled_s = other.tier.settled_s = 0.0
        saved(one.connected(), store, "a", "b")
        other.until(lambda: len(other.tier._keys) == 2)

        assert [(False, 2)] == told_of_disk(one)
        assert [] == told_of_disk(one)
        assert [] == told_of_disk(other)  # nobody asked for them there
        asked = other.begin("a", "b", "c")
        assert [(False, 2)] == told_of_disk(other)

        store.lose(store.hellos[0].namespace, asked.keys[:1])
        one.until(lambda: len(one.tier._keys) == 1)
        assert [(True, 1)] == told_of_disk(one)


def test_of_a_store_that_is_away_nothing_is_told(model, store):
    with kv_rig(model, settings(store)) as rig:
        rig.tier.settled_s = 0.0
        saved(rig.connected(), store, "a")
        assert [(False, 1)] == told_of_disk(rig)
        store.close()
        rig.until(lambda: rig.tier._client is None)

        assert [] == told_of_disk(rig)


def test_engines_of_other_weights_share_nothing(model, tmp_path, store):
    other_model = weights(tmp_path / "other", b"weightz")
    with kv_rig(model, settings(store)) as one, kv_rig(other_model, settings(store)) as other:
        saved(one.connected(), store, "a")
        other.connected()

        assert 0 == other.look_until_known(other.begin("a"))
        assert 2 == len({hello.namespace for hello in store.hellos})


def test_a_copy_of_the_same_weights_elsewhere_shares_all(model, tmp_path, store):
    copy = weights(tmp_path / "copy")
    with kv_rig(model, settings(store)) as one, kv_rig(copy, settings(store)) as other:
        saved(one.connected(), store, "a")
        other.until(lambda: bool(other.tier._keys))

        assert 1 == other.look_until_known(other.begin("a"))


def test_a_short_prompt_is_saved_when_it_comes_again_though_l2_had_it_all_along(model, store):
    with kv_rig(model, settings(store, min_tokens=1000)) as rig:
        rig.connected()
        for _ in range(2):
            asked = rig.begin("a", "b")
            rig.store(asked, 0, 1)
            rig.until(lambda: not rig.manager.has_pending_work())
            rig.finish(asked)
            kept = len(next(iter(store.values.values())))

        assert 2 == kept
        assert 1 == sum(type(each).__name__ == "Save" for each in store.seen)


def test_without_a_store_and_without_memory_of_prompts_nothing_is_saved(model, store):
    with kv_rig(model, settings(store, min_tokens=1000, seen_blocks=0)) as rig:
        rig.connected()
        for _ in range(3):
            asked = rig.begin("a")
            rig.store(asked, 0)
            rig.finish(asked)

        assert [] == store.seen


def test_use_of_a_faster_tier_is_told_so_that_the_store_keeps_what_is_used(model, store):
    with kv_rig(model, settings(store)) as rig:
        saved(rig.connected(), store, "a")
        rig.until(lambda: bool(rig.tier._keys))
        asked = rig.begin("a")
        rig.finish(asked)
        rig.until(lambda: type(store.seen[-1]).__name__ == "Touch")

        assert asked.keys == store.seen[-1].keys


def test_a_model_of_several_groups_has_keys_of_each_by_the_size_of_its_blocks(model, store):
    """As hybrid models have: one hash a 16 tokens, blocks of 16 and of 32 tokens."""
    groups = (OffloadingGroupConfig(16, ("a",), 0), OffloadingGroupConfig(32, ("b",), 1))
    hashes = [b"%d" % number for number in range(5)]
    with kv_rig(model, settings(store), groups=groups) as rig:
        rig.tier.expect("r", 80, hashes)

        keys = rig.tier._expected["r"].keys
        assert [make_offload_key(each, 0) for each in hashes] == keys[:5]
        assert [make_offload_key(each, 1) for each in (b"1", b"3")] == keys[5:]


# --- the real store


def test_values_of_a_real_store_are_there_again_after_it_was_killed(model, tmp_path):
    folder = tmp_path / "values"
    folder.mkdir()
    real = KvStoreProcess(folder).start()
    try:
        with kv_rig(model, settings(store=real, load_s=5.0)) as rig:
            rig.connected()
            rig.write(0, 10)
            rig.write(1, 20)

            def is_saved() -> bool:
                # A store whose mirror is still opening keeps nothing.
                asked = rig.begin("a", "b")
                rig.store(asked, 0, 1)
                rig.finish(asked)
                return len(rig.tier._keys) == 2

            rig.until(is_saved)
            real.kill()
            rig.until(lambda: rig.tier._client is None)
            rig.manager.reset_cache()
            assert 0 == rig.look_until_known(rig.begin("a", "b"))
            real.start()
            rig.until(lambda: len(rig.tier._keys) == 2)
            again = rig.begin("a", "b")

            assert 2 == rig.look_until_known(again)
            rig.load(again, 8, 9)
            assert [wholly(10), wholly(20)] == [rig.read(8), rig.read(9)]
    finally:
        real.stop()
