"""What stands behind each value on the disk, so that no other bytes are taken for it: namespace, key, generation, length, checksum. Pure.

The checksum (XXH3, 128 bits) is over the value and the rest of its trailer. It is no defence against who writes to the disk on purpose.
"""

from __future__ import annotations

import struct

import xxhash

_MAGIC = b"HRKV\x01"
_HEAD = struct.Struct("<5s16sQQH")
_SUM_BYTES = 16
KEY_ROOM = 64
"""Longest key."""
TRAILER_BYTES = _HEAD.size + KEY_ROOM + _SUM_BYTES


def seal(buffer: memoryview, *, value_bytes: int, space: str, key: bytes, generation: int) -> None:
    """Write the trailer behind the value at the buffer's begin; the buffer has `value_bytes + TRAILER_BYTES`. Raises `ValueError`."""
    if not 0 < len(key) <= KEY_ROOM:
        raise ValueError(f"a key of {len(key)} bytes; 1 to {KEY_ROOM} fit")
    head = _head(value_bytes, space, key, generation)
    end = value_bytes + TRAILER_BYTES - _SUM_BYTES
    buffer[value_bytes:end] = head
    buffer[end : end + _SUM_BYTES] = xxhash.xxh3_128_digest(buffer[:end])


class Check:
    """Sees a value as it is copied, part by part, and says at the end whether it was the right one, every bit of it."""

    __slots__ = ("_head", "_sum")

    def __init__(self, *, value_bytes: int, space: str, key: bytes, generation: int) -> None:
        self._head = _head(value_bytes, space, key, generation)
        self._sum = xxhash.xxh3_128()

    def see(self, part: memoryview) -> None:
        """Take in the next part."""
        self._sum.update(part)

    def is_sound(self, trailer: memoryview) -> bool:
        """Return whether all that was seen is the value that the trailer, and the caller, mean."""
        head = trailer[:-_SUM_BYTES]
        self._sum.update(head)
        return head == self._head and bytes(trailer[-_SUM_BYTES:]) == self._sum.digest()


def _head(value_bytes: int, space: str, key: bytes, generation: int) -> bytes:
    head = _HEAD.pack(_MAGIC, bytes.fromhex(space), generation, value_bytes, len(key))
    return head + key + bytes(KEY_ROOM - len(key))
