"""Disks that fail under the KV store: whatever is done to its files and processes, a load gives the bytes that were saved, or a miss.

No fault is an error of a job, and none ends the store. Real files, real processes, real mounts.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.kvstore.adapters import mirror_files
from services.kvstore.lifecycle import MirrorState, Trouble
from services.kvstore.mirror import Mirror
from services.kvstore.store import Store
from tests.support.in_loop import in_loop
from tests.support.kv_rig import Engine, engine, running, settings, until

NUMBERS = list(range(60))


def data_of(folder: Path) -> Path:
    return next(folder.glob("*/data.mdb"))


def run(*command: str) -> None:
    subprocess.run(command, check=True)


async def filled(folder: Path, numbers=NUMBERS, *, clean: bool = True) -> None:
    chosen = settings([folder])
    async with running(chosen, clean=clean) as store, engine(store, chosen) as e:
        assert await e.save(numbers) == []


async def still_exact(chosen, e: Engine, numbers=NUMBERS) -> list[int]:
    """Load all, twice, and see that saving goes on; return what was missing."""
    missing = await e.load(numbers)
    await e.load(numbers)
    fresh = list(range(10_000, 10_010))
    await e.save(fresh)
    await e.load(fresh)
    return missing


def flip(data: Path, rng: random.Random, bits: int) -> None:
    size = data.stat().st_size
    with data.open("r+b") as file:
        for _ in range(bits):
            at = rng.randrange(size)
            file.seek(at)
            byte = file.read(1)[0] ^ (1 << rng.randrange(8))
            file.seek(at)
            file.write(bytes([byte]))


def cut(data: Path, rng: random.Random) -> None:
    os.truncate(data, rng.randrange(data.stat().st_size))


def overwrite(data: Path, rng: random.Random) -> None:
    """A run of pages from elsewhere in the same file: a misdirected write."""
    content = data.read_bytes()
    pages = len(content) // 4096
    run = rng.randrange(1, 30)
    source, target = rng.randrange(pages), rng.randrange(pages)
    with data.open("r+b") as file:
        file.seek(target * 4096)
        file.write(content[source * 4096 : (source + run) * 4096])


def zero(data: Path, rng: random.Random) -> None:
    """Pages that never reached the disk."""
    pages = data.stat().st_size // 4096
    with data.open("r+b") as file:
        for _ in range(rng.randrange(1, 40)):
            file.seek(rng.randrange(pages) * 4096)
            file.write(bytes(4096))


def few_bits(data: Path, rng: random.Random) -> None:
    flip(data, rng, 8)


def many_bits(data: Path, rng: random.Random) -> None:
    flip(data, rng, 2000)


DAMAGES: list[Callable[[Path, random.Random], None]] = [few_bits, many_bits, cut, overwrite, zero]


async def damage_and_load(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    await filled(folder)
    for _ in range(rng.randrange(1, 3)):
        rng.choice(DAMAGES)(data_of(folder), rng)
    if rng.random() < 0.5:
        (folder / mirror_files.MARKER).unlink()  # as after a power cut: all is looked through
    chosen = settings([folder])
    async with running(chosen) as store, engine(store, chosen) as e:
        await still_exact(chosen, e)
        async with asyncio.timeout(20):  # damage may show late; each one that does is repaired
            while await e.save(NUMBERS) or await e.load(NUMBERS):
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_done_to_the_files_a_load_is_exact_or_a_miss(tmp_path, seed):
    in_loop(damage_and_load)(tmp_path / "a", seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 300))
def test_whatever_is_done_to_the_files_more_often(tmp_path, seed):
    in_loop(damage_and_load)(tmp_path / "a", seed)


def send(mirror: Mirror, number: signal.Signals) -> None:
    assert mirror.pid > 0, "0 would be this process and its group"
    os.kill(mirror.pid, number)


async def both_healthy(store: Store) -> None:
    await until(lambda: all(m.state is MirrorState.HEALTHY for m in store.mirrors), 20)


@in_loop
async def test_a_value_that_was_exchanged_for_another_is_a_miss(tmp_path):
    """Whole, sound values under the wrong key, or of another namespace, are as wrong as broken ones."""
    await filled(tmp_path / "a", [1, 2, 3])
    script = (
        "import lmdb, sys; env = lmdb.open(sys.argv[1], max_dbs=2); db = env.open_db(b'values')\n"
        "with env.begin(write=True, db=db) as t:\n"
        "    ks = [k for k, _ in t.cursor()]; vs = [bytes(t.get(k)) for k in ks]\n"
        "    t.put(ks[0], vs[1]); t.put(ks[1], vs[0])\n"
    )
    run(sys.executable, "-c", script, str(data_of(tmp_path / "a").parent))
    chosen = settings([tmp_path / "a"])
    async with running(chosen) as store, engine(store, chosen) as e:
        assert len(await e.load([1, 2, 3])) == 2
        assert store.counts.corrupt == 2
        await until(lambda: len(e.client.keys) == 1)


@in_loop
async def test_a_file_cut_while_it_is_mapped_costs_misses_and_no_more(tmp_path):
    chosen = settings([tmp_path / "a"])
    async with running(chosen) as store, engine(store, chosen) as e:
        assert await e.save(NUMBERS) == []
        os.truncate(data_of(tmp_path / "a"), 3 * 4096)
        await e.load(NUMBERS)
        await until(lambda: store.mirrors[0].drops >= 1 and store.mirrors[0].serves, 20)
        assert await e.save(NUMBERS) == []
        assert await e.load(NUMBERS) == []


@in_loop
async def test_files_as_a_power_cut_leaves_them(tmp_path):
    """Copies of the folder at random moments while values are written, as a disk holds them when the power goes: pages of many ages."""
    rng = random.Random(5)
    chosen = settings([tmp_path / "a"], budget_bytes=8 << 20)
    copies: list[Path] = []
    async with running(chosen) as store, engine(store, chosen) as e:
        await e.save(NUMBERS[:20])
        for turn in range(4):
            job = e.begin_save(list(range(20 + turn * 60, 80 + turn * 60)))
            await asyncio.sleep(rng.random() * 0.02)
            copy = tmp_path / f"copy{turn}"
            await asyncio.to_thread(torn_copy, tmp_path / "a", copy, rng)
            copies.append(copy)
            await e.end(job)
    for copy in copies:
        chosen = settings([copy], budget_bytes=8 << 20)
        async with running(chosen) as store, engine(store, chosen) as e:
            await e.load(list(range(300)))
            await until(lambda: store.mirrors[0].serves)
            assert store.mirrors[0].opened_checked
            assert await e.save([5000]) == []


def torn_copy(folder: Path, copy: Path, rng: random.Random) -> None:
    """Copy in parts of random order, so that the parts are of different moments; some are not there yet."""
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("data.mdb", mirror_files.MARKER))
    source, target = data_of(folder), copy / data_of(folder).relative_to(folder)
    size = source.stat().st_size
    parts = list(range(0, size, 256 << 10))
    rng.shuffle(parts)
    with source.open("rb") as old, target.open("wb") as new:
        new.truncate(size)
        for at in parts[: max(1, len(parts) - rng.randrange(3))]:
            old.seek(at)
            new.seek(at)
            new.write(old.read(256 << 10))


@in_loop
async def test_a_mirror_killed_in_the_middle_of_writing(tmp_path):
    chosen = settings([tmp_path / "a"])
    rng = random.Random(7)
    async with running(chosen) as store, engine(store, chosen) as e:
        await e.save(NUMBERS[:10])
        for turn in range(5):
            await until(lambda: store.mirrors[0].serves)
            job = e.begin_save(list(range(1000 * (turn + 1), 1000 * (turn + 1) + 60)))
            await asyncio.sleep(rng.random() * 0.01)
            send(store.mirrors[0], signal.SIGKILL)
            await e.end(job, deadline_s=10.0)
            await until(lambda: store.mirrors[0].drops == turn + 1)  # noqa: B023
        await until(lambda: store.mirrors[0].serves)
        await until(lambda: e.knows(NUMBERS[:10]))
        assert await e.load(NUMBERS[:10]) == []
        for turn in range(5):
            await e.load(list(range(1000 * (turn + 1), 1000 * (turn + 1) + 60)))


@in_loop
async def test_a_stopped_mirror_is_dropped_and_the_other_one_answers(tmp_path):
    chosen = settings([tmp_path / "a", tmp_path / "b"])
    async with running(chosen) as store, engine(store, chosen) as e:
        await both_healthy(store)
        assert await e.save(NUMBERS) == []
        stopped = store.mirrors[0]
        send(stopped, signal.SIGSTOP)
        for _ in range(40):
            assert await e.load(NUMBERS[:8]) == [], "the other one has them all"
            if stopped.drops:
                break
            await asyncio.sleep(0.05)
        assert stopped.trouble is Trouble.STALLED or stopped.serves
        await until(lambda: stopped.drops == 1 and stopped.drop_s > 0)
        assert stopped.drop_s < 0.1
        await until(lambda: stopped.state is MirrorState.HEALTHY, 20)
        assert e.knows(NUMBERS)


@in_loop
async def test_a_single_mirror_that_stops_costs_a_miss_within_its_deadline(tmp_path):
    chosen = settings([tmp_path / "a"])
    async with running(chosen) as store, engine(store, chosen) as e:
        assert await e.save(NUMBERS) == []
        send(store.mirrors[0], signal.SIGSTOP)
        done = await e.end(e.begin_load(NUMBERS[:8]), deadline_s=3.0)
        assert len(done.missing) == 8
        await until(lambda: e.knows(NUMBERS), 20)
        assert await e.load(NUMBERS) == []


@in_loop
async def test_a_mirror_that_lost_all_is_rebuilt_from_the_other(tmp_path):
    chosen = settings([tmp_path / "a", tmp_path / "b"])
    async with running(chosen) as store, engine(store, chosen) as e:
        await both_healthy(store)
        assert await e.save(NUMBERS) == []
    shutil.rmtree(tmp_path / "a")
    async with running(chosen) as store, engine(store, chosen) as e:
        await until(lambda: e.knows(NUMBERS))
        assert await e.load(NUMBERS) == []
        await both_healthy(store)
        assert store.rebuilder.copied == len(NUMBERS)
    shutil.rmtree(tmp_path / "b")
    async with running(chosen) as store, engine(store, chosen) as e:
        await until(lambda: e.knows(NUMBERS))
        assert await e.load(NUMBERS) == []


@in_loop
async def test_a_file_that_kills_its_process_is_emptied_and_rebuilt(tmp_path):
    chosen = settings([tmp_path / "a", tmp_path / "b"])
    async with running(chosen) as store, engine(store, chosen) as e:
        await both_healthy(store)
        assert await e.save(NUMBERS) == []
    os.truncate(data_of(tmp_path / "a"), 8192)  # two meta pages that point beyond the end
    async with running(chosen) as store, engine(store, chosen) as e:
        await until(lambda: e.knows(NUMBERS), 20)
        assert await e.load(NUMBERS) == []
        await both_healthy(store)
        missing = store.catalogue.lacking(0)
        assert list(missing) == []


@in_loop
async def test_a_vanished_folder_is_noticed_and_its_return_too(tmp_path):
    chosen = settings([tmp_path / "disk" / "a"])
    (tmp_path / "disk").mkdir()
    async with running(chosen) as store, engine(store, chosen) as e:
        assert await e.save(NUMBERS) == []
        (tmp_path / "disk").rename(tmp_path / "away")
        await until(lambda: not store.mirrors[0].serves)
        assert store.mirrors[0].trouble is Trouble.VANISHED
        await until(lambda: not e.client.keys)
        assert await e.load(NUMBERS[:3]) == NUMBERS[:3]
        assert await e.save([7000]) == [7000]
        (tmp_path / "away").rename(tmp_path / "disk")
        await until(lambda: e.knows(NUMBERS), 20)
        assert await e.load(NUMBERS) == []


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 6 MiB. Only root can mount one."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    disk = tmp_path / "small"
    disk.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=6m", "none", str(disk))
    yield disk
    run("umount", "-l", str(disk))


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
    run("mount", "-o", "remount,ro", str(small_disk))
    async with running(chosen) as store, engine(store, chosen) as e:
        await until(lambda: e.knows(NUMBERS[:20]))
        assert store.mirrors[0].trouble is Trouble.READ_ONLY
        assert await e.load(NUMBERS[:20]) == []
        assert await e.save([500]) == [500]
