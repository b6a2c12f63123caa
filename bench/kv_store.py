"""The KV store against plain files of the same size, on the same disk in the same run, and what it does when disks fail.

The store is a process of its own and is spoken to as engines do: by its socket, with a region in memory.
Files are written beside a name and renamed, and read by `preadv` into the same region, by as many threads as the store has readers;
no checksum is made of them. Rounds are interleaved; figures are medians.

    python bench/kv_store.py [--folder DIR] [--mib 1024] [--value-bytes 737280] [--rounds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import xxhash

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.support.kv_sides import SLOTS, Files, Region, Store, forget  # noqa: E402
from bench.support.processes import machine  # noqa: E402 - needs the path above

TURNOVERS = 4
INDEXED = 100_000
SMALL_BYTES = 4096


@contextmanager
def timed(into: list[float], size: int) -> Iterator[None]:
    """Note GB/s."""
    began_at = time.monotonic()
    yield
    into.append(size / (time.monotonic() - began_at) / 1e9)


class Bench:
    """All rounds of one size."""

    def __init__(self, folder: Path, *, value_bytes: int, mib: int, rounds: int) -> None:
        self._folder = folder
        self._value = value_bytes
        self._count = (mib << 20) // value_bytes
        self._rounds = rounds
        self._region = Region(value_bytes)
        self._found: dict[str, list[float]] = {}

    def _of(self, name: str) -> list[float]:
        return self._found.setdefault(name, [])

    def throughput(self) -> dict[str, float]:
        """Put and get, store and files, interleaved."""
        for turn in range(self._rounds):
            self._round(turn)
            shutil.rmtree(self._folder)
            self._folder.mkdir()
        return {name: round(statistics.median(values), 3) for name, values in self._found.items()}

    def _round(self, turn: int) -> None:
        numbers = list(range(self._count))
        mixed = random.Random(turn).sample(numbers, len(numbers))
        size = self._count * self._value
        files = Files(self._folder / "files", self._region)
        direct = Files(self._folder / "direct", self._region, direct=True)
        place = self._folder / "store"
        store = Store([place], self._region, budget_bytes=2 * size)
        store.wait_mirrors()
        os.sync()
        puts: list[tuple[str, Callable[[Sequence[int]], object]]] = [
            ("files put", files.put),
            ("store put", lambda n: store.run("save", n)),
            ("files put O_DIRECT", direct.put),
        ]
        for name, put in puts if turn % 2 else puts[::-1]:
            with timed(self._of(name), size):
                put(numbers)
            os.sync()
        gets: list[tuple[str, Callable[[Sequence[int]], object]]] = [
            ("files get", files.get),
            ("store get", lambda n: store.run("load", n)),
        ]
        for name, get in gets if turn % 2 else gets[::-1]:
            get(mixed)  # all of it in memory
            with timed(self._of(f"{name} warm"), size):
                get(mixed)
        with timed(self._of("files get warm, one thread"), size):
            files.get(mixed, threads=1)
        store.stop()
        forget(self._folder)
        store.start()
        store.wait_keys(self._count + 1)
        for name, get in (*(gets if turn % 2 else gets[::-1]), ("files get O_DIRECT", direct.get)):
            with timed(self._of(f"{name} cold"), size):
                get(mixed)
        store.close()

    def checksum(self) -> float:
        """Return GB/s of XXH3 over values as they come."""
        value = bytes(self._region.view(0))
        began_at = time.monotonic()
        rounds = 200
        for _ in range(rounds):
            xxhash.xxh3_128_digest(value)
        return round(rounds * len(value) / (time.monotonic() - began_at) / 1e9, 2)

    def turnover(self) -> dict[str, object]:
        """Fill the budget and save it four times over; return GB/s of each turn, and what the file takes."""
        store = Store(
            [self._folder / "turn"], self._region, budget_bytes=self._budget_of(self._count)
        )
        store.wait_mirrors()
        size = self._count * self._value
        rates: list[float] = []
        for turn in range(TURNOVERS + 1):
            with timed(rates, size):
                store.run("save", range(turn * self._count, (turn + 1) * self._count))
        store.stop()
        data = next((self._folder / "turn").glob("*/data.mdb"))
        taken = data.stat().st_blocks * 512
        return {
            "put GB/s, first and later turns": [round(rate, 2) for rate in rates],
            "file over live bytes": round(taken / size, 3),
        }

    def _budget_of(self, count: int) -> int:
        return count * (-(-(self._value + 200) // 4096) * 4096)

    def drop(self) -> dict[str, object]:
        """Stop one of two mirrors under load; return job times before and after, and how long loads waited for it."""
        folders = [self._folder / "one", self._folder / "two"]
        store = Store(folders, self._region, budget_bytes=self._budget_of(4 * SLOTS))
        store.wait_mirrors()
        numbers = list(range(SLOTS))
        store.run("save", numbers)
        draw = random.Random(3)
        before = [store.one("load", draw.sample(numbers, 8))[0] for _ in range(200)]
        killed: list[float] = []
        stalled: list[float] = []
        for into, number in ((killed, signal.SIGKILL), (stalled, signal.SIGSTOP)):
            for _ in range(3):
                store.wait_mirrors()
                os.kill(store.mirrors()[0], number)
                began_at = time.monotonic()
                times = []
                while time.monotonic() - began_at < 1.6:
                    seconds, done = store.one("load", draw.sample(numbers, 8))
                    assert not done.missing, done
                    times.append(seconds)
                into.append(max(times))
                if into is killed:
                    killed_p95 = statistics.quantiles(times, n=20)[-1]
        store.close()
        return {
            "load of 8 values, p95 ms": round(statistics.quantiles(before, n=20)[-1] * 1e3, 2),
            "p95 ms in the 1.6 s after a mirror was killed": round(killed_p95 * 1e3, 2),
            "longest load when a mirror is killed, ms": round(max(killed) * 1e3, 1),
            "longest load when a mirror is stopped (deadline 1 s), ms": round(
                max(stalled) * 1e3, 1
            ),
        }


def rebuild(folder: Path) -> dict[str, float]:
    """Return how long a store with 100,000 values takes to know them again."""
    region = Region(SMALL_BYTES)
    store = Store([folder / "index"], region, budget_bytes=INDEXED * 3 * SMALL_BYTES)
    store.wait_mirrors()
    store.run("save", range(INDEXED))
    store.stop()
    connected = store.start()
    waited = store.wait_keys(INDEXED + 1)
    store.close()
    return {
        "listening after s": round(connected, 2),
        "100,000 keys told after s more": round(waited, 2),
    }


def main() -> None:
    """Measure all, print a table and JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="", help="on the disk that is measured")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--value-bytes", type=int, default=737_280)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-kv", dir=options.folder or None))
    try:
        bench = Bench(
            folder, value_bytes=options.value_bytes, mib=options.mib, rounds=options.rounds
        )
        rates = bench.throughput()
        found = {
            "machine": machine(),
            "value bytes": options.value_bytes,
            "MiB": options.mib,
            "GB/s": rates,
            "store over files": {
                name: round(rates[f"store {name}"] / rates[f"files {name}"], 2)
                for name in ("put", "get warm", "get cold")
            },
            "checksum GB/s": bench.checksum(),
            "turnover": bench.turnover(),
            "restart": rebuild(folder),
            "mirrors": bench.drop(),
            "load average": os.getloadavg()[0],
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = json.dumps(found, indent=2)
    print(text)
    if options.json:
        Path(options.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
