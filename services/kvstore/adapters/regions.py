"""Memory of a mirror's process: regions of engines, and buffers of its own.

Regions are mapped to be written: `pwrite` would hold the file's lock, and two readers would wait for each other.
And a thread that waits for a page in the middle of a copy cannot go on with it once it is killed; in a system call it could.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading

from services.kvstore.adapters.memory_map import address_of
from shared.kv.seqpacket import close_all

MAX_BUFFERS_BYTES = 64 << 20
"""Where a thread has more, of several sizes, it begins anew."""
_memcpy = ctypes.CDLL(None).memcpy
_memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memcpy.restype = ctypes.c_void_p


class Region:
    """An engine's memory; let go of when it is detached and nothing runs on it."""

    def __init__(self, fd: int, life: int) -> None:
        self.fd = fd
        self._life = life
        self._lock = threading.Lock()
        self._users = 0
        self._detached = False
        self._map = mmap.mmap(fd, 0)
        self._address = address_of(memoryview(self._map))

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

    def holds(self, size: int, offset: int) -> bool:
        """Return whether so many bytes are there: an engine that cut its region short gets nothing, and kills nobody."""
        end = offset + size
        return offset >= 0 and end <= len(self._map) and end <= os.fstat(self.fd).st_size

    def put(self, source: int, size: int, offset: int) -> None:
        """Copy bytes from an address of ours to a place that it holds. Other threads of ours run meanwhile."""
        _memcpy(self._address + offset, source, size)

    def get(self, view: memoryview, offset: int) -> bool:
        """Fill the view; False where the region has not so much."""
        try:
            return os.preadv(self.fd, [view], offset) == len(view)
        except OSError:
            return False

    def _let_go(self) -> None:
        if self._detached and not self._users:
            self._map.close()
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
