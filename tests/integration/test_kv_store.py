"""The KV store through its real socket, with real LMDB in real processes: what is kept, seen, evicted, and back after a restart."""

from __future__ import annotations

import asyncio

from services.kvstore.adapters.lmdb_space import TRANSACTION_BYTES
from services.kvstore.lifecycle import MirrorState
from tests.support.in_loop import in_loop
from tests.support.kv_rig import engine, key_of, running, settings, until


@in_loop
async def test_what_was_saved_is_loaded_also_after_a_restart(tmp_path):
    chosen = settings([tmp_path / "a"])
    numbers = list(range(100))
    async with running(chosen) as store, engine(store, chosen) as e:
        assert await e.load([1]) == [1]
        assert await e.save(numbers) == []
        await until(lambda: e.knows(numbers))
        assert await e.load(numbers) == []
        assert await e.save(numbers[:5]) == []
        assert store.counts.known == 5
    async with running(chosen) as store, engine(store, chosen) as e:
        assert not store.mirrors[0].opened_checked
        await until(lambda: e.knows(numbers))
        assert await e.load(numbers) == []
        assert await e.load([1000, *numbers[:3]]) == [1000]


@in_loop
async def test_all_engines_of_a_namespace_see_a_value_at_once_and_others_never(tmp_path):
    chosen = settings([tmp_path / "a", tmp_path / "b"])
    async with (
        running(chosen) as store,
        engine(store, chosen, name="one") as one,
        engine(store, chosen, name="two") as two,
        engine(store, chosen, name="other", namespace="f" * 32, salt=b"x") as other,
    ):
        assert await one.save([1, 2, 3]) == []
        await until(lambda: two.knows([1, 2, 3]), 1.0)
        assert await two.load([1, 2, 3]) == []
        assert await other.load([1, 2, 3]) == [1, 2, 3]
        assert await other.save([1, 2, 3]) == []
        assert await other.load([1, 2, 3]) == []
        assert await one.load([1, 2, 3]) == []
        await until(lambda: all(m.state is MirrorState.HEALTHY for m in store.mirrors))


@in_loop
async def test_the_budget_holds_and_what_is_used_stays(tmp_path):
    chosen = settings([tmp_path / "a"], budget_bytes=40 * 68 * 1024, correlated_s=0.0)
    async with running(chosen) as store, engine(store, chosen) as e:
        assert await e.save(list(range(10))) == []
        assert await e.load(list(range(10))) == []
        for at in range(10, 200, 10):
            assert await e.save(list(range(at, at + 10))) == []
        assert store.catalogue.index.used_bytes <= chosen.budget_bytes
        assert await e.load(list(range(10))) == [], "used twice: stays while others pass through"
        assert await e.load([15]) == [15]
        await until(lambda: key_of(15) not in e.client)
        data = next((tmp_path / "a").glob("*/data.mdb"))
        freed_late = 3 * TRANSACTION_BYTES  # pages come back two transactions later
        assert data.stat().st_blocks * 512 <= chosen.budget_bytes + freed_late


@in_loop
async def test_two_engines_share_and_a_job_may_be_larger_than_a_part(tmp_path):
    chosen = settings([tmp_path / "a"])
    async with (
        running(chosen) as store,
        engine(store, chosen, slots=256) as one,
        engine(store, chosen) as two,
    ):
        job = one.begin_save(list(range(256)))
        assert await two.save([1000]) == []
        assert (await one.end(job)).missing == []
        assert await two.load(list(range(256))) == []
        await asyncio.sleep(0)
