"""Memory of a mirror's process: regions of engines, by descriptor, and buffers of its own.

Regions are written by `pwrite` and never mapped: an engine that cuts its region short costs a short write here and no life.
"""

from __future__ import annotations

import mmap
import os
import threading

from shared.kv.seqpacket import close_all

MAX_BUFFERS_BYTES = 64 << 20
"""Where a thread has more, of several sizes, it begins anew."""


class Region:
    """An engine's memory; let go of when it is detached and nothing runs on it."""

    def __init__(self, fd: int, life: int) -> None:
        self.fd = fd
        self._life = life
        self._lock = threading.Lock()
        self._users = 0
        self._detached = False

    def __enter__(self) -> int:
        with self._lock:
            self._users += 1
        return self.fd

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            self._let_go()

    def detach(self) -> None:
        """Let go as soon as nothing runs on it."""
        with self._lock:
            self._detached = True
            self._let_go()

    def _let_go(self) -> None:
        if self._detached and not self._users:
            close_all([self.fd, self._life])
            self.fd = self._life = -1


class Buffers(threading.local):
    """Page-aligned memory of each thread, by size."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int], memoryview] = {}

    def of(self, size: int, *, part: int = 0) -> memoryview:
        """Return a buffer of this size; another one for each part."""
        key = (size, part)
        if key not in self._made:
            if sum(of for of, _ in self._made) > MAX_BUFFERS_BYTES:
                self._made.clear()
            self._made[key] = memoryview(mmap.mmap(-1, size))
        return self._made[key]


def put(fd: int, view: memoryview, offset: int) -> bool:
    """Write all of it into the region; False where the region does not take it."""
    try:
        return os.pwrite(fd, view, offset) == len(view)
    except OSError:
        return False


def get(fd: int, view: memoryview, offset: int) -> bool:
    """Fill the view from the region; False where the region has not so much."""
    try:
        return os.preadv(fd, [view], offset) == len(view)
    except OSError:
        return False
