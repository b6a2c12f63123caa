"""Puts the service of `headrace up` among the platform's records, and says what else is there."""

from __future__ import annotations

import asyncio

import msgspec

from shared.clock import wall_time_s
from shared.errors import Conflict, NoHistory, RequestTimeout
from shared.ids import ServiceName
from shared.messages import DesiredRecord, ServiceRecord
from shared.records import Entry, Records
from shared.spec.model import LLMService
from shared.spec.revision import revision
from shared.spec.writing import to_document

UP = "headrace up"
"""`ServiceRecord.by` of what is declared here: the next `up` replaces it, whatever its name."""
POLL_S = 0.05


class Declared(msgspec.Struct, frozen=True):
    """What the platform is to run."""

    is_ours: bool
    """False: a service of this name was applied, and stays as it is."""
    others: tuple[ServiceName, ...]
    """Services that were applied earlier, and come up again."""


async def declare(records: Records, spec: LLMService, *, engines: int) -> Declared:
    """Write the records as soon as the operator has made their buckets; the caller sets the deadline."""
    while True:
        try:
            return await _declare(records, spec, engines)
        except (Conflict, NoHistory, RequestTimeout):
            await asyncio.sleep(POLL_S)


async def _declare(records: Records, spec: LLMService, engines: int) -> Declared:
    found = await records.list(ServiceRecord)
    others = []
    for entry in found.values():
        record = entry.record
        if record.service == spec.name or record.deleted:
            continue
        if record.by == UP:
            gone = msgspec.structs.replace(record, deleted=True)
            await records.put(gone, expected=entry.revision)
        else:
            others.append(record.service)
    there = found.get(spec.name)
    is_ours = there is None or there.record.deleted or there.record.by == UP
    if is_ours:
        await records.put(_record(spec, there), expected=there.revision if there else 0)
        await records.put(_desired(spec, engines))
    return Declared(is_ours, tuple(sorted(others)))


def _record(spec: LLMService, there: Entry[ServiceRecord] | None) -> ServiceRecord:
    document = to_document(spec)
    generation = 1
    if there is not None:
        generation = there.record.generation + (there.record.spec != document)
    return ServiceRecord(
        service=spec.name,
        spec=document,
        generation=generation,
        revision=revision(spec),
        by=UP,
        applied_us=_now_us(),
    )


def _desired(spec: LLMService, engines: int) -> DesiredRecord:
    return DesiredRecord(
        service=spec.name, replicas=engines, by="console", reason=UP, set_us=_now_us()
    )


def _now_us() -> int:
    return int(wall_time_s() * 1e6)
