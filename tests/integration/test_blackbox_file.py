"""The file of a black box against the kernel: kills, locks, full disks, and what /proc says."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.engine.adapters.box_file import BoxFile
from shared.blackbox.layout import STEPS, Identity, Second, Step, decode
from shared.blackbox.report import Ending
from shared.blackbox.shelf import box_path, keep_left, read
from shared.ids import EngineId, ServiceName
from shared.memory_group import memory_group
from shared.processes.tree import process_tree

KILLS = 30


def identity(engine: str) -> Identity:
    return Identity(engine=EngineId(engine), service=ServiceName("m"), pid=os.getpid())


def write_for_ever(folder: Path, engine: str, ready: int) -> None:
    """Be a process that does nothing but write its box."""
    _, writer = BoxFile.create(folder, identity(engine))
    number = 0
    while True:
        for _ in range(50):
            number += 1
            writer.step(Step(number=number, unix_s=float(number), us=number % 1000, mode="M/graph"))
        writer.second(Second(unix_s=float(number), step=number))
        writer.table([], unix_s=float(number))
        if number == 50:
            os.write(ready, b"!")


@contextmanager
def writing(folder: Path, engine: str) -> Iterator[int]:
    """Fork such a process; yield once it writes; it is killed at the end."""
    reader, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            write_for_ever(folder, engine, ready)
        finally:
            os._exit(1)
    os.close(ready)
    try:
        assert os.read(reader, 1) == b"!"
        yield pid
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def unseen(_: Identity) -> Ending:
    return Ending()


def test_a_box_can_be_read_whenever_its_writer_was_killed(tmp_path):
    chance = random.Random(4)
    for number in range(KILLS):
        engine = f"e{number}"
        with writing(tmp_path, engine):
            time.sleep(chance.uniform(0, 0.02))
        box = decode(box_path(tmp_path, engine).read_bytes())

        assert identity(engine).engine == box.identity.engine
        numbers = [step.number for step in box.steps]
        # All are there, but for the one that may have been torn in the place of the oldest.
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert len(numbers) in {min(numbers[-1], STEPS.slots), STEPS.slots - 1}
        assert box.table is not None
        assert numbers[-1] >= box.seconds[-1].step


def test_the_box_of_a_living_engine_is_left_alone_until_its_end(tmp_path):
    live, shelf = tmp_path / "live", tmp_path / "shelf"

    with writing(live, "e1"):
        while_it_lives = keep_left(live, shelf, unseen)
    after_its_end = keep_left(live, shelf, unseen)

    assert [] == while_it_lives
    assert ["e1"] == [kept.report.engine for kept in after_its_end]
    assert read(shelf / "e1.json").last_step > 0


def test_a_forked_child_does_not_hold_the_box_of_its_dead_parent(tmp_path):
    """As vLLM's core, which may outlive the engine for a moment."""
    reader, told = os.pipe()
    parent = os.fork()
    if parent == 0:
        BoxFile.create(tmp_path / "live", identity("e1"))
        child = os.fork()
        if child == 0:
            time.sleep(30)
        os.write(told, str(child).encode())
        os._exit(0)
    child = int(os.read(reader, 16))
    os.waitpid(parent, 0)
    try:
        kept = keep_left(tmp_path / "live", tmp_path / "shelf", unseen)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(told)

    assert ["e1"] == [one.report.engine for one in kept]


def test_a_full_disk_is_an_error_at_the_start_and_leaves_nothing(tmp_path):
    """A limit of the file's size stands for the disk: both fail the allocation."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            BoxFile.create(tmp_path, identity("e1"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)

    assert [] == list(tmp_path.iterdir())


def test_all_blocks_are_there_before_the_first_write(tmp_path):
    box, _ = BoxFile.create(tmp_path, identity("e1"))
    try:
        stat = box.path.stat()

        assert stat.st_size <= stat.st_blocks * 512
        assert 0o600 == stat.st_mode & 0o777
    finally:
        box.remove()
    assert [] == list(tmp_path.iterdir())


def test_the_tree_of_processes_has_this_one_and_its_children(tmp_path):
    with writing(tmp_path, "e1") as child:
        tree = process_tree(os.getpid())

    assert os.getpid() == tree[0].pid
    assert child in {process.pid for process in tree}
    assert all(process.rss_bytes > 1 << 20 for process in tree)


def test_a_process_that_is_not_there_has_no_tree():
    assert [] == process_tree(1 << 30)


def test_the_kernel_tells_of_our_memory():
    group = memory_group()

    assert group.oom_kills >= 0
    assert group.limit_bytes == 0 or group.limit_bytes > 1 << 20
