"""A store that hangs, is killed or loses values: requests go on, and no slot is used into which it may still write."""

from __future__ import annotations

import time

import pytest

from services.engine.steps.step import KvMoves
from tests.support.memory_store import MemoryStore
from tests.support.vllm_rig import imported_vllm

imported_vllm()

from vllm.v1.kv_offload.base import (  # noqa: E402 - after the switches that vLLM reads when it is imported
    LookupResult,
)

from tests.support.kv_tiers_rig import (  # noqa: E402
    LOAD_S,
    SLOTS,
    VALUE,
    emptied,
    kv_rig,
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


# --- a store that misbehaves


def test_a_value_that_does_not_load_is_computed_and_not_asked_for_again(model, store):
    with kv_rig(model, settings(store)) as rig:
        saved(rig.connected(), store, "a", "b")
        emptied(rig)
        asked = rig.begin("a", "b")
        store.broken.add(asked.keys[1])

        assert 1 == rig.look_until_known(asked)
        rig.load(asked, 9)
        assert wholly(10) == rig.read(9)
        loads = sum(type(each).__name__ == "Load" for each in store.seen)
        assert 1 == rig.look_until_known(asked)
        assert loads == sum(type(each).__name__ == "Load" for each in store.seen)


def test_a_silent_store_costs_one_deadline_and_then_nothing(model, store):
    with kv_rig(model, settings(store)) as rig:
        saved(rig.connected(), store, "a", "b")
        emptied(rig)
        store.answers.clear()
        began = time.monotonic()
        assert 0 == rig.look_until_known(rig.begin("a", "b"))
        waited = time.monotonic() - began
        began = time.monotonic()
        assert 0 == rig.look_until_known(rig.begin("a", "b"))

        assert LOAD_S <= waited < LOAD_S + 1.0
        assert time.monotonic() - began < LOAD_S / 2
        store.answers.set()
        rig.until(lambda: rig.tier.jobs.is_idle)
        assert 2 == rig.look_until_known(rig.begin("a", "b"))


def test_a_late_answer_writes_into_no_slot_that_is_in_use(model, store):
    with kv_rig(model, settings(store)) as rig:
        saved(rig.connected(), store, "a", "b")
        emptied(rig)
        store.answers.clear()
        assert 0 == rig.look_until_known(rig.begin("a", "b"))
        names = [f"n{each}" for each in range(SLOTS - 2)]
        asked = rig.begin(*names)
        for place in range(len(names)):
            rig.write(place, 40 + place)
        assert rig.store(asked, *range(len(names)))
        full = rig.begin("x")
        assert not rig.manager.primary_tier.prepare_store(
            full.keys, full.context
        ) or LookupResult.HIT not in rig.lookup(full)
        store.answers.set()
        rig.until(lambda: rig.tier.jobs.is_idle)
        rig.load(asked, *range(10, 10 + len(names)))

        assert [wholly(40 + place) for place in range(len(names))] == [
            rig.read(10 + place) for place in range(len(names))
        ]


def test_slots_come_back_with_the_late_answer(model, store):
    with kv_rig(model, settings(store)) as rig:
        saved(rig.connected(), store, "a", "b")
        emptied(rig)
        store.answers.clear()
        rig.look_until_known(rig.begin("a", "b"))
        assert SLOTS - 2 == rig.manager.primary_tier._get_num_free_chunks()
        store.answers.set()
        rig.until(lambda: rig.tier.jobs.is_idle)

        assert SLOTS == rig.manager.primary_tier._get_num_free_chunks()


@pytest.mark.parametrize("job", ["load", "save"])
def test_all_blocks_can_be_dropped_while_the_store_hangs_and_slots_under_way_are_not_used(
    model, store, job
):
    with kv_rig(model, settings(store, load_s=60.0)) as rig:
        saved(rig.connected(), store, "a", "b")
        if job == "load":
            emptied(rig)
            store.answers.clear()
            rig.lookup(rig.begin("a", "b"))
            rig.step()
        else:
            store.answers.clear()
            rig.store(rig.begin("c", "d"), 0, 1)
        began = time.monotonic()
        rig.manager.reset_cache()

        assert time.monotonic() - began < 1.0
        assert 2 == len(rig.tier.jobs.aside)
        host = rig.manager.primary_tier
        assert SLOTS - 2 == host._get_num_free_chunks()
        handed_out = {chunk.chunk_id for chunk in host._allocate_chunks([b""] * (SLOTS - 2))}
        assert not handed_out & rig.tier.jobs.aside


def test_a_killed_store_costs_misses_until_it_is_back(model, store, tmp_path):
    with kv_rig(model, settings(store)) as rig:
        saved(rig.connected(), store, "a", "b")
        emptied(rig)
        store.close()
        rig.until(lambda: rig.tier._client is None)
        assert 0 == rig.look_until_known(rig.begin("a", "b"))
        again = MemoryStore(store.path)
        again.values = store.values
        rig.connected()
        rig.until(lambda: bool(rig.tier._keys))

        assert 2 == rig.look_until_known(rig.begin("a", "b"))
        again.close()


def test_slots_stay_aside_until_the_last_process_of_a_killed_store_has_ended(model, store):
    with kv_rig(model, settings(store, load_s=60.0)) as rig:
        saved(rig.connected(), store, "a", "b")
        emptied(rig)
        store.answers.clear()
        asked = rig.begin("a", "b")
        rig.lookup(asked)
        rig.step()
        store.close(keeps_life_lines=True)

        assert 0 == rig.look_until_known(asked)
        assert 2 == len(rig.tier.jobs.aside)
        store.let_go()
        rig.until(lambda: rig.tier.jobs.is_idle)
        assert SLOTS == rig.manager.primary_tier._get_num_free_chunks()


def test_what_waits_to_be_saved_is_bounded(model, store):
    with kv_rig(model, settings(store, save_share=0.5)) as rig:
        rig.connected()
        store.answers.clear()
        for each in range(6):
            rig.store(rig.begin(f"n{each}"), each)
            rig.step()

        assert SLOTS // 2 == rig.tier.jobs.save_slots
        moves = KvMoves()
        rig.manager.add_moves(moves)
        assert 2 * VALUE == moves.dropped
        store.answers.set()


def test_where_not_all_can_be_saved_the_beginning_is(model, store):
    with kv_rig(model, settings(store, save_share=0.5)) as rig:
        rig.connected()
        asked = rig.begin(*"abcdef")
        rig.store(asked, *range(6))
        rig.until(lambda: not rig.manager.has_pending_work())

        assert asked.keys[:4] == list(*store.values.values())


def test_a_prefix_larger_than_l2_is_loaded_in_part_instead_of_pushing_itself_out(model, store):
    with kv_rig(model, settings(store, load_share=0.25)) as rig:
        saved(rig.connected(), store, *"abcdef")
        emptied(rig)

        asked = rig.begin(*"abcdef")
        assert SLOTS // 4 == rig.look_until_known(asked)
        assert SLOTS // 4 == rig.look_until_known(asked)


def test_values_that_others_push_out_are_not_loaded_without_end(model, store):
    with kv_rig(model, settings(store)) as rig:
        saved(rig.connected(), store, "a", "b")
        asked = rig.begin("a", "b")
        found = []
        for _ in range(3 * SLOTS):
            emptied(rig)
            found.append(rig.look_until_known(asked))

        assert [2, 0] == [found[0], found[-1]]


def test_a_key_that_is_lost_is_a_miss_at_once(model, store):
    with kv_rig(model, settings(store)) as rig:
        saved(rig.connected(), store, "a")
        emptied(rig)
        asked = rig.begin("a")
        store.lose(store.hellos[0].namespace, list(asked.keys))
        rig.until(lambda: not rig.tier._keys)

        assert [LookupResult.MISS] == rig.lookup(asked)
