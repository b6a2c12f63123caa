"""Disks of the KV store that are full, read-only, or stand still: real file systems, mounted for the test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.kvstore.lifecycle import MirrorState, Trouble
from tests.support.in_loop import in_loop
from tests.support.kv_rig import (
    NUMBERS,
    as_root,
    both_healthy,
    engine,
    run,
    running,
    settings,
    until,
)


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 6 MiB."""
    disk = tmp_path / "small"
    disk.mkdir()
    as_root("mount", "-t", "tmpfs", "-o", "size=6m,mode=777", "none", str(disk))
    yield disk
    as_root("umount", "-l", str(disk))


@in_loop
async def test_a_full_disk_still_reads_and_the_other_mirror_takes_all(tmp_path, small_disk):
    chosen = settings([small_disk / "a", tmp_path / "b"])
    async with running(chosen) as store, engine(store, chosen) as e:
        await both_healthy(store)
        numbers = list(range(150))
        for at in range(0, 150, 10):
            assert await e.save(numbers[at : at + 10]) == []
        small = store.mirrors[0]
        await until(lambda: small.drops >= 1 and small.serves)
        assert small.trouble is Trouble.FULL
        assert small.read_only
        assert await e.load(numbers) == []
        assert any(entry.mirrors & small.bit for entry in store.catalogue.index.all_entries())


@in_loop
async def test_a_full_disk_alone_refuses_saves_and_keeps_what_it_has(small_disk):
    chosen = settings([small_disk / "a"])
    async with running(chosen) as store, engine(store, chosen) as e:
        numbers = list(range(150))
        missing = await e.save(numbers)
        assert missing
        await until(lambda: store.mirrors[0].serves and len(e.client.keys) > 10)
        kept = [n for n in numbers if n not in missing]
        assert kept
        assert set(await e.load(numbers)) <= set(missing)


@in_loop
async def test_a_disk_that_became_read_only_still_reads(small_disk):
    chosen = settings([small_disk / "a"])
    async with running(chosen) as store, engine(store, chosen) as e:
        assert await e.save(NUMBERS[:20]) == []
    as_root("mount", "-o", "remount,ro", str(small_disk))
    async with running(chosen) as store, engine(store, chosen) as e:
        await until(lambda: e.knows(NUMBERS[:20]))
        assert store.mirrors[0].trouble is Trouble.READ_ONLY
        assert await e.load(NUMBERS[:20]) == []
        assert await e.save([500]) == [500]


@pytest.fixture
def frozen_disk(tmp_path) -> Iterator[Path]:
    """A file system of its own that can be made to stand still: who writes waits in the kernel, and no signal reaches him."""
    disk, image = tmp_path / "still", tmp_path / "image"
    disk.mkdir()
    run("truncate", "-s", "64M", str(image))
    run("mkfs.ext4", "-q", str(image))
    as_root("mount", "-o", "loop", str(image), str(disk))
    as_root("chmod", "777", str(disk))
    yield disk
    as_root("umount", "-l", str(disk))


@in_loop
async def test_a_disk_that_stands_still_holds_up_nobody_although_its_process_cannot_die(
    tmp_path, frozen_disk
):
    chosen = settings([frozen_disk / "a", tmp_path / "b"])
    async with running(chosen) as store, engine(store, chosen) as e:
        await both_healthy(store)
        assert await e.save(NUMBERS) == []
        still = store.mirrors[0]
        as_root("fsfreeze", "-f", str(frozen_disk))
        try:
            done = await e.end(e.begin_save([2000, 2001]), deadline_s=5.0)
            assert [] == done.missing, "the other mirror has them"
            assert MirrorState.STUCK is still.state
            assert Trouble.STALLED is still.trouble
            assert still.drop_s < 0.1
            pid = still.pid
            assert await e.load([*NUMBERS, 2000, 2001]) == []
            assert await e.save(list(range(3000, 3020))) == []
            await asyncio.sleep(0.3)
            assert pid == still.pid, "nothing else opens its files meanwhile"
        finally:
            as_root("fsfreeze", "-u", str(frozen_disk))
        await both_healthy(store)
        assert pid != still.pid
        assert await e.load([*NUMBERS, 2000, 2001, *range(3000, 3020)]) == []
        assert [] == list(store.catalogue.lacking(0))
