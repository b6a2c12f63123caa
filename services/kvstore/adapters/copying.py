"""Values from a file into a region and back.

Bytes go file → own buffer → check → region. A value that does not check out is told as missing, whatever its slot holds then.
"""

from __future__ import annotations

from collections.abc import Sequence

import lmdb
import msgspec

from services.kvstore import orders
from services.kvstore.adapters.lmdb_space import TRANSACTION_BYTES, Found, Space
from services.kvstore.adapters.memory_map import address_of
from services.kvstore.adapters.regions import Buffers, Region
from services.kvstore.trailer import TRAILER_BYTES, Check, seal

CHUNK_BYTES = 1 << 20
"""What is copied at one go. Smaller parts stay in the processor's cache, but each call gives the interpreter's lock away and waits for it:
with 256 KiB two readers get 5 GB/s together, with 1 MiB 7.5 (values of 720 KiB, 2 cores)."""


class Outcome(msgspec.Struct):
    """Positions of values that were not copied, by why."""

    missing: list[int] = []
    bad: list[int] = []
    refused: list[int] = []


def read_values(
    space: Space, order: orders.Read | orders.Check, region: Region | None, buffers: Buffers
) -> Outcome:
    """Copy values into the region, or only check them without one."""
    outcome = Outcome()
    with space.reading() as reader:
        for position, value in enumerate(order.values):
            found = reader.find(value.key)
            if found is None:
                outcome.missing.append(position)
                continue
            check = Check(
                value_bytes=order.value_bytes,
                space=order.space,
                key=value.key,
                generation=value.generation,
            )
            holds = region is None or region.holds(order.value_bytes, value.offset)
            target = (region, value.offset) if region is not None and holds else None
            _copy(found, order.value_bytes, check, target, buffers)
            if not _is_sound(found, order.value_bytes, check, buffers):
                outcome.bad.append(position)
            elif not holds:
                outcome.refused.append(position)
    return outcome


def _copy(
    found: Found, size: int, check: Check, target: tuple[Region, int] | None, buffers: Buffers
) -> None:
    """Copy a value by way of a buffer that the processor's cache holds, and have it checked.

    What goes into the region is what was checked, byte for byte: nobody else writes to the buffer.
    """
    whole = buffers.of(CHUNK_BYTES)
    source = address_of(whole)
    for at in range(0, size, CHUNK_BYTES):
        part = whole[: min(CHUNK_BYTES, size - at)]
        if not found.fill(part, at):
            return  # shorter than it should be: the check will say so
        check.see(part)
        if target is not None:
            region, offset = target
            region.put(source, len(part), offset + at)


def _is_sound(found: Found, size: int, check: Check, buffers: Buffers) -> bool:
    if found.size != size + TRAILER_BYTES:
        return False
    trailer = buffers.of(TRAILER_BYTES)
    return found.fill(trailer, size) and check.is_sound(trailer)


def write_values(space: Space, order: orders.Write, region: Region, buffers: Buffers) -> list[int]:
    """Keep values from the region, and delete what the order drops; return the positions of those that were not kept."""
    missing: list[int] = []
    group = max(1, TRANSACTION_BYTES // space.stored_bytes)
    drop: Sequence[bytes] = order.drop
    for at in range(0, len(order.values), group):
        part = order.values[at : at + group]
        ready = []
        for position, value in enumerate(part):
            buffer = buffers.of(space.stored_bytes, part=position)
            if not region.get(buffer[: order.value_bytes], value.offset):
                missing.append(at + position)
                continue
            seal(
                buffer,
                value_bytes=order.value_bytes,
                space=order.space,
                key=value.key,
                generation=value.generation,
            )
            row = orders.ROW.pack(value.generation, order.now, 0.0)
            ready.append((value.key, row, buffer))
        if not _commit(space, ready, drop):
            missing += [at + i for i in range(len(part)) if at + i not in missing]
        drop = ()
    return sorted(missing)


def _commit(
    space: Space, ready: Sequence[tuple[bytes, bytes, memoryview]], drop: Sequence[bytes]
) -> bool:
    """Keep the values. A full map is a matter of freed pages that come back with the next transaction, so there is a second try."""
    try:
        space.put(ready, drop)
    except lmdb.MapFullError:
        space.delete(drop)
        try:
            space.put(ready)
        except lmdb.MapFullError:
            return False
    return True
