"""The two sides that bench/kv_store.py compares: a store process with an engine's connection, and plain files."""

from __future__ import annotations

import atexit
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

from shared.kv.client import CannotConnect, Client
from shared.kv.namespace import digest
from shared.kv.protocol import VERSION, Done, Hello

ROOT = Path(__file__).resolve().parents[2]
SLOTS = 64
THREADS = 2
REBUILD_S = 1.5


def key_of(number: int) -> bytes:
    """Return a key of vLLM's size."""
    return xxhash.xxh3_128_digest(str(number).encode()) * 2 + b"\0\0\0\0"


class Region:
    """An engine's memory: values that do not compress, each slot another one."""

    def __init__(self, value_bytes: int) -> None:
        self.value_bytes = value_bytes
        self.fd = os.memfd_create("bench")
        os.ftruncate(self.fd, SLOTS * value_bytes)
        self.memory = mmap.mmap(self.fd, SLOTS * value_bytes)
        block = os.urandom(1 << 20)
        for at in range(0, len(self.memory), len(block)):
            part = min(len(block), len(self.memory) - at)
            self.memory[at : at + part] = block[-part:]

    def view(self, slot: int) -> memoryview:
        """Return a slot."""
        return memoryview(self.memory)[slot * self.value_bytes : (slot + 1) * self.value_bytes]


class Store:
    """A store process and an engine's connection to it."""

    def __init__(self, folders: Sequence[Path], region: Region, budget_bytes: int) -> None:
        self._place = Path(tempfile.mkdtemp(prefix="kv"))
        self._folders = folders
        self._region = region
        self._budget = max(budget_bytes, 1 << 20)
        self._job = 0
        self.start()

    def start(self) -> float:
        """Start the process; return how long until all keys were told."""
        socket = str(self._place / "s")
        options = [
            *("--folders", ",".join(map(str, self._folders)), "--socket", socket),
            *("--budget-bytes", str(self._budget), "--bus", "false", "--log-level", "warning"),
        ]
        began_at = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "services.kvstore", *options], cwd=ROOT, stdout=sys.stderr
        )
        atexit.register(self.process.kill)
        hello = Hello(
            version=VERSION,
            engine="bench",
            namespace=digest({"bench": str(self._region.value_bytes)}),
            value_bytes=self._region.value_bytes,
            slots=SLOTS,
        )
        while True:
            try:
                self.client = Client.connect(socket, hello, self._region.fd, deadline_s=5.0)
                break
            except CannotConnect:
                time.sleep(0.005)
        return time.monotonic() - began_at

    def wait_mirrors(self) -> None:
        """Wait until all mirrors serve and have the same; leaves one value that nobody asks for again."""
        while self.one("save", [-1])[1].missing:
            time.sleep(0.005)
        while len(self.mirrors()) < len(self._folders):
            time.sleep(0.01)
        if len(self._folders) > 1:
            time.sleep(REBUILD_S)

    def wait_keys(self, count: int) -> float:
        """Wait until so many keys were told."""
        began_at = time.monotonic()
        while len(self.client.keys) < count:
            time.sleep(0.001)
        return time.monotonic() - began_at

    def mirrors(self) -> list[int]:
        """Return the processes of its mirrors, by folder."""
        found = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                words = stat.read_text().rpartition(")")[2].split()
                line = (stat.parent / "cmdline").read_bytes().decode()
            except OSError:
                continue
            if int(words[1]) == self.process.pid:
                number = next(n for n, f in enumerate(self._folders) if f'"{f}"' in line)
                found[number] = int(stat.parent.name)
        return [found[n] for n in sorted(found)]

    def run(self, kind: str, numbers: Sequence[int]) -> list[float]:
        """Load or save values, two jobs of half the slots under way at a time; return the seconds of each job. All must be there."""
        half = SLOTS // 2
        jobs = [list(numbers[at : at + half]) for at in range(0, len(numbers), half)]
        give = self.client.load if kind == "load" else self.client.save
        began: dict[int, float] = {}
        times: list[float] = []
        free = [0, half]
        slots: dict[int, int] = {}
        while jobs or began:
            while jobs and free:
                part, first = jobs.pop(0), free.pop()
                self._job += 1
                slots[self._job], began[self._job] = first, time.monotonic()
                assert give(
                    self._job, [key_of(n) for n in part], list(range(first, first + len(part)))
                )
            for done in self.client.wait(10.0):
                assert not done.missing, done
                times.append(time.monotonic() - began.pop(done.job))
                free.append(slots.pop(done.job))
        return times

    def one(self, kind: str, numbers: Sequence[int], slot: int = 0) -> tuple[float, Done]:
        """Do one job alone; return its time and end."""
        self._job += 1
        give = self.client.load if kind == "load" else self.client.save
        began_at = time.monotonic()
        assert give(self._job, [key_of(n) for n in numbers], list(range(slot, slot + len(numbers))))
        done = []
        while not done:
            done = self.client.wait(10.0)
        return time.monotonic() - began_at, done[0]

    def stop(self) -> None:
        """End it in order: all is synced."""
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def close(self) -> None:
        """End it and its place."""
        self.stop()
        shutil.rmtree(self._place, ignore_errors=True)


class Files:
    """Plain files, one a value."""

    def __init__(self, folder: Path, region: Region, *, direct: bool = False) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._region = region
        self._flags = os.O_DIRECT if direct else 0

    def _put(self, number: int) -> None:
        beside = self.folder / f"{number}.new"
        fd = os.open(beside, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | self._flags, 0o600)
        os.pwrite(fd, self._region.view(number % SLOTS), 0)
        os.close(fd)
        beside.rename(self.folder / str(number))

    def _get(self, number: int) -> None:
        fd = os.open(self.folder / str(number), os.O_RDONLY | self._flags)
        os.preadv(fd, [self._region.view(number % SLOTS)], 0)
        os.close(fd)

    def put(self, numbers: Sequence[int]) -> None:
        """Write values."""
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(self._put, numbers))

    def get(self, numbers: Sequence[int], threads: int = THREADS) -> None:
        """Read values."""
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(self._get, numbers))


def forget(folder: Path) -> None:
    """Have the kernel drop what it holds of these files."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
