"""Declaring services: what `headrace apply` does and what programs can do as well, over the bus.

    declared = await Declared.open(bus)
    applied = await declared.apply(spec, by="me")
    await declared.settled(spec.name, timeout_s=120)
    await declared.scale(spec.name, 3, by="me")

All writes compare: where somebody else writes at the same time, the change is made again on top of theirs.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Self

import msgspec

from shared.clock import wall_time_s
from shared.entry import Entry
from shared.errors import Conflict, HeadraceError, NoHistory, UserError
from shared.ids import ServiceName
from shared.messages import DesiredRecord, ServicePhase, ServiceRecord, StatusRecord
from shared.record_view import View
from shared.records import Records
from shared.spec.model import LLMService
from shared.spec.reading import from_document
from shared.spec.revision import differences, revision
from shared.spec.writing import to_document
from shared.typedbus import TypedBus

TRIES = 5
LOOK_S = 1.0
MICROSECONDS = 1_000_000


class NotSettled(HeadraceError):
    """A service did not come to be as it was declared."""


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What applying a spec came to."""

    service: ServiceName
    generation: int
    is_new: bool
    changes: tuple[str, ...]
    """A line each; none: it was so already."""


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A declared service, as it shall be and as it is."""

    record: ServiceRecord
    desired: DesiredRecord | None = None
    status: StatusRecord | None = None

    @property
    def spec(self) -> LLMService:
        """Return what was declared. Raises `SpecError` where this version cannot read it."""
        return from_document(self.record.spec)


class Declared:
    """The services that a platform was told to have."""

    def __init__(self, records: Records, *, wall_s: Callable[[], float] = wall_time_s) -> None:
        self._records = records
        self._wall_s = wall_s

    @classmethod
    async def open(cls, bus: TypedBus) -> Self:
        """Return the services that are declared over a bus. Raises `BusClosed`, `RequestTimeout`."""
        return cls(await Records.open(bus))

    async def preview(self, spec: LLMService, *, fingerprint: str = "") -> Applied:
        """Return what `apply` would do. Raises `BusError`."""
        return _applied(await self._entry(spec.name), spec, fingerprint)

    async def apply(
        self, spec: LLMService, *, by: str, source: str = "", fingerprint: str = ""
    ) -> Applied:
        """Declare a service; a second time changes nothing. Raises `UserError`, `BusError`."""
        for _ in range(TRIES):
            entry = await self._entry(spec.name)
            applied = _applied(entry, spec, fingerprint)
            if not applied.changes:
                return applied
            if entry is None:
                generation = await self._seen(spec.name) + 1
                applied = msgspec.structs.replace(applied, generation=generation)
            record = ServiceRecord(
                service=spec.name,
                spec=to_document(spec),
                generation=applied.generation,
                revision=revision(spec, fingerprint),
                fingerprint=fingerprint,
                source=source,
                by=by,
                applied_us=self._now_us(),
            )
            try:
                await self._records.put(record, expected=entry.revision if entry else 0)
            except Conflict:
                continue
            return applied
        raise _contended(spec.name)

    async def delete(self, name: str, *, by: str) -> None:
        """Let a service drain and end. Raises `UserError` where there is none, `BusError`."""
        for _ in range(TRIES):
            entry = await self._must(name)
            if entry.record.deleted:
                return
            record = msgspec.structs.replace(
                entry.record, deleted=True, by=by, generation=entry.record.generation + 1
            )
            try:
                await self._records.put(record, expected=entry.revision)
            except Conflict:
                continue
            return
        raise _contended(name)

    async def scale(self, name: str, replicas: int, *, by: str, reason: str = "") -> DesiredRecord:
        """Say how many replicas a service shall have, within its own bounds. Raises `UserError`, `BusError`."""
        entry = await self._must(name)
        scaling = from_document(entry.record.spec).scaling
        if not scaling.min_replicas <= replicas <= scaling.most:
            raise UserError(
                f"{name} may have {scaling.min_replicas} to {scaling.most} replicas, not {replicas}",
                hint="change scalingPolicy.minReplicas or maxReplicas and apply it",
            )
        record = DesiredRecord(
            service=ServiceName(name),
            replicas=replicas,
            by=by,
            reason=reason,
            set_us=self._now_us(),
        )
        await self._records.put(record)
        return record

    async def scale_to(self, name: str, *, rps: float, by: str) -> DesiredRecord:
        """Scale for so many requests a second, by the spec's `targetRPS`. Raises `UserError` where there is none, `BusError`."""
        entry = await self._must(name)
        target = from_document(entry.record.spec).scaling.target_rps
        if target is None:
            raise UserError(
                f"{name} does not say how many requests a replica takes",
                hint="set scalingPolicy.targetRPS, or scale to a number of replicas",
            )
        return await self.scale(name, max(1, math.ceil(rps / target)), by=by, reason=f"{rps:g}/s")

    async def get(self, name: str) -> Service:
        """Return a service. Raises `UserError` where there is none, `BusError`."""
        entry = await self._must(name)
        desired = await self._records.get(DesiredRecord, name)
        status = await self._records.get(StatusRecord, name)
        return Service(
            record=entry.record,
            desired=desired.record if desired else None,
            status=status.record if status else None,
        )

    async def list(self) -> list[Service]:
        """Return all services by name. Raises `BusError`."""
        records = await self._records.list(ServiceRecord)
        desired = await self._records.list(DesiredRecord)
        status = await self._records.list(StatusRecord)
        return [
            Service(
                record=entry.record,
                desired=desired[name].record if name in desired else None,
                status=status[name].record if name in status else None,
            )
            for name, entry in sorted(records.items())
        ]

    async def follow(self, on_change: Callable[[], None], *, group: asyncio.TaskGroup) -> None:
        """Call `on_change` whenever a service is declared, changed, or in another state, as long as the bus is open."""
        for kind in (ServiceRecord, DesiredRecord, StatusRecord):
            await self._records.watch(kind, lambda _: on_change(), group=group)

    async def settled(
        self,
        name: str,
        *,
        timeout_s: float,
        generation: int = 0,
        on_change: Callable[[StatusRecord | None], None] = lambda _: None,
    ) -> StatusRecord | None:
        """Return when a service is as it was declared (or by a later declaration), or None when it is gone.

        Raises `NotSettled` with the reason where it failed or the time is over, `BusError`.
        """
        entry = await self._entry(name)
        generation = max(generation, entry.record.generation if entry is not None else 0)
        is_over: asyncio.Event = asyncio.Event()
        last: list[StatusRecord | None] = [None]

        def look(view: View[StatusRecord]) -> None:
            found = view.entries.get(name)
            last[0] = found.record if found is not None else None
            on_change(last[0])
            if _is_over(last[0], generation):
                is_over.set()

        try:
            async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as group:
                view = await self._records.watch(StatusRecord, look, group=group)
                if entry is not None and entry.record.deleted:
                    while await self._entry(name) is not None:  # noqa: ASYNC110 -- its end is no event of status
                        await asyncio.sleep(LOOK_S / 4)
                else:
                    await is_over.wait()
                view.stop()
        except TimeoutError:
            raise NotSettled(_why_not(name, last[0], timeout_s)) from None
        status = last[0]
        if status is not None and status.phase is ServicePhase.FAILED:
            raise NotSettled(f"{name} failed: {status.reason}")
        return status

    async def _entry(self, name: str) -> Entry[ServiceRecord] | None:
        try:
            return await self._records.get(ServiceRecord, name)
        except NoHistory as error:
            raise UserError(
                "this platform keeps no services",
                hint="it needs an operator: `headrace up` starts one",
            ) from error

    async def _seen(self, name: str) -> int:
        """Return the newest generation that an operator saw: a record that cannot be read has left a status. 0: none."""
        with suppress(NoHistory):
            status = await self._records.get(StatusRecord, name)
            return 0 if status is None else status.record.generation
        return 0

    async def _must(self, name: str) -> Entry[ServiceRecord]:
        entry = await self._entry(name)
        if entry is None:
            raise UserError(
                f"there is no service {name!r}", hint="`headrace get llmservice` lists them"
            )
        return entry

    def _now_us(self) -> int:
        return int(self._wall_s() * MICROSECONDS)


def _applied(entry: Entry[ServiceRecord] | None, spec: LLMService, fingerprint: str) -> Applied:
    if entry is None:
        return Applied(
            service=spec.name, generation=1, is_new=True, changes=tuple(differences(None, spec))
        )
    record = entry.record
    changes: list[str] = []
    if record.deleted:
        changes.append("it was being deleted: it stays")
    if record.spec != to_document(spec):
        changes += _told(record, spec)
    elif record.revision != revision(spec, fingerprint) and fingerprint:
        changes.append(f"the model's files: {record.fingerprint[:12] or '?'} → {fingerprint[:12]}")
    return Applied(
        service=spec.name,
        generation=record.generation + bool(changes),
        is_new=False,
        changes=tuple(changes),
    )


def _told(record: ServiceRecord, spec: LLMService) -> list[str]:
    try:
        old = from_document(record.spec)
    except UserError:
        return ["what was declared before cannot be read: it is replaced"]
    return differences(old, spec) or ["how it is written"]


def _is_over(status: StatusRecord | None, generation: int) -> bool:
    if status is None or status.generation < generation:
        return False
    return status.is_settled or status.phase is ServicePhase.FAILED


def _why_not(name: str, status: StatusRecord | None, timeout_s: float) -> str:
    if status is None:
        return f"nobody looked after {name} within {timeout_s:g} s: does an operator run?"
    reason = f": {status.reason}" if status.reason else ""
    return f"{name} is {status.phase} after {timeout_s:g} s{reason}"


def _contended(name: str) -> UserError:
    return UserError(f"{name} is being changed by others all the time", hint="try again")
