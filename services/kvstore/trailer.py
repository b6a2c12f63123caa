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


def is_sound(
    buffer: memoryview, *, value_bytes: int, space: str, key: bytes, generation: int
) -> bool:
    """Return whether the buffer holds this very value, every bit of it."""
    if len(buffer) != value_bytes + TRAILER_BYTES:
        return False
    end = len(buffer) - _SUM_BYTES
    if buffer[value_bytes:end] != _head(value_bytes, space, key, generation):
        return False
    return bytes(buffer[end:]) == xxhash.xxh3_128_digest(buffer[:end])


def _head(value_bytes: int, space: str, key: bytes, generation: int) -> bytes:
    head = _HEAD.pack(_MAGIC, bytes.fromhex(space), generation, value_bytes, len(key))
    return head + key + bytes(KEY_ROOM - len(key))
