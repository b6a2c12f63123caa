"""How scattered the free blocks of a pool are: runs of adjacent free ones, looked at a few blocks a step. Pure.

A pool of 100,000 blocks takes 20 ms to look at, which no step may take: so each step looks at `CHUNK` blocks (20 to 60 µs), and what is
told is that of the last whole pass. It is no picture of one instant: a pass takes pool ÷ `CHUNK` steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec
from typing_extensions import override

CHUNK = 128
"""Blocks that one step looks at."""


class FreeRuns(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Runs of adjacent free blocks."""

    free: int
    """Free blocks, when they were looked at."""
    runs: int
    largest: int
    """Blocks of the longest run."""


class PoolScan:
    """Goes over a pool's blocks again and again. A block is anything with a `ref_cnt`, 0 where nobody uses it."""

    def __init__(self, blocks: Sequence[Any]) -> None:
        self._blocks = blocks
        self._next = 0
        self._run = 0
        """Blocks of the run that the last chunk ended in."""
        self._free = self._runs = self._largest = 0
        """Of the runs that have ended in this pass."""
        self.last: FreeRuns | None = None
        """Of the last whole pass; none before the first."""

    @override
    def __repr__(self) -> str:
        return f"<PoolScan at {self._next} of {len(self._blocks)}, last {self.last}>"

    def look(self) -> None:
        """Look at the next blocks."""
        chunk = self._blocks[self._next : self._next + CHUNK]
        self._next += CHUNK
        # In C, all of it: as a loop this takes ten times as long where the pool is scattered.
        runs = [*map(len, bytes(map(bool, map(_ref_cnt, chunk))).split(b"\1"))]
        runs[0] += self._run
        self._run = runs.pop()
        self._end(runs)
        if self._next >= len(self._blocks):
            self._end([self._run])
            self.last = FreeRuns(self._free, self._runs, self._largest)
            self._next = self._run = self._free = self._runs = self._largest = 0

    def _end(self, runs: list[int]) -> None:
        if runs:
            self._free += sum(runs)
            self._runs += len(runs) - runs.count(0)
            self._largest = max(self._largest, *runs)


_ref_cnt = attrgetter("ref_cnt")
