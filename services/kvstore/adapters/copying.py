"""Values from a file into a region and back.

Bytes go file → own buffer → check → region, so that only what was checked is ever seen by an engine.
"""

from __future__ import annotations

from collections.abc import Sequence

import lmdb
import msgspec

from services.kvstore import orders
from services.kvstore.adapters.lmdb_space import TRANSACTION_BYTES, Space
from services.kvstore.adapters.regions import Buffers, Region, get, put
from services.kvstore.trailer import is_sound, seal


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
    size = order.value_bytes
    buffer = buffers.of(space.stored_bytes)
    with space.reading() as reader:
        for position, value in enumerate(order.values):
            found = reader.get(value.key)
            if found is None:
                outcome.missing.append(position)
                continue
            if len(found) != len(buffer):
                outcome.bad.append(position)
                continue
            buffer[:] = found
            if not is_sound(
                buffer,
                value_bytes=size,
                space=order.space,
                key=value.key,
                generation=value.generation,
            ):
                outcome.bad.append(position)
            elif region is not None and not put(region.fd, buffer[:size], value.offset):
                outcome.refused.append(position)
    return outcome


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
            if not get(region.fd, buffer[: order.value_bytes], value.offset):
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
