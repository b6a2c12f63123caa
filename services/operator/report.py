"""What is said of a service: phase, reason, replicas. Pure."""

from __future__ import annotations

import msgspec

from services.operator.fleet import Replica, Wanted, World
from shared.messages import ReplicaPhase, ReplicaStatus, ServicePhase, StatusRecord

MAX_REASON_CHARS = 500
CRASHES = 5
"""Ends of a replica by itself after which a service of which none serves counts as failed; its host goes on trying."""
MAX_FINGERPRINTS = 8


def status_of(world: World, wanted: Wanted, replicas: list[Replica], lacks: str) -> StatusRecord:
    """Return the status of a service; `lacks`: what is in the way of replicas that are not there."""
    record = wanted.record
    ready = [one for one in replicas if one.serves and not one.is_leaving]
    updated = sum(one.revision == record.revision for one in ready)
    phase, reason = _phase(wanted, replicas, updated, lacks)
    return StatusRecord(
        service=record.service,
        phase=phase,
        reason=reason[:MAX_REASON_CHARS],
        generation=record.generation,
        revision=record.revision,
        wanted=wanted.replicas,
        ready=len(ready),
        updated=updated,
        replicas=[_line(one) for one in replicas],
        fingerprints=fingerprints_of(wanted, replicas),
        since_us=world.unix_us,
        epoch=world.epoch,
    )


def with_same_time(status: StatusRecord, before: StatusRecord | None) -> StatusRecord:
    """Return a status that has the time of the one before where its phase is the same, and is equal to it where nothing changed."""
    if before is None or before.phase is not status.phase:
        return status
    status = msgspec.structs.replace(status, since_us=before.since_us)
    same = msgspec.structs.replace(status, epoch=before.epoch)
    return before if same == before else status


def fingerprints_of(wanted: Wanted, replicas: list[Replica]) -> dict[str, str]:
    """Return what the model's files of each revision are, as first told: of the present one, and of those that have a replica."""
    known = dict(wanted.status.fingerprints) if wanted.status is not None else {}
    for one in replicas:
        if one.fingerprint and not one.is_dead:
            known.setdefault(one.revision, one.fingerprint)
    if wanted.record.fingerprint:
        known[wanted.record.revision] = wanted.record.fingerprint
    needed = {one.revision for one in replicas} | {wanted.record.revision}
    kept = {revision: mark for revision, mark in known.items() if revision in needed}
    return dict(sorted(kept.items())[:MAX_FINGERPRINTS])


def _phase(
    wanted: Wanted, replicas: list[Replica], updated: int, lacks: str
) -> tuple[ServicePhase, str]:
    record = wanted.record
    if record.deleted:
        return ServicePhase.DRAINING, f"{len(replicas)} replicas are left"
    if wanted.spec is None:
        return ServicePhase.FAILED, wanted.problem
    present = [one for one in replicas if not one.is_leaving]
    old = sum(one.revision != record.revision for one in present)
    trouble = _trouble(present, record.revision) or lacks
    progress = "" if updated >= wanted.replicas and not old else _progress(wanted, updated, old)
    return _serving(wanted, present), trouble or progress


def _serving(wanted: Wanted, present: list[Replica]) -> ServicePhase:
    """Return the phase of a service that shall be there."""
    serving = sum(one.serves for one in present)
    if serving >= wanted.replicas:
        return ServicePhase.RUNNING
    if serving == 0 and _is_hopeless(present, wanted.record.revision):
        return ServicePhase.FAILED
    if not present:
        return ServicePhase.PENDING
    before = wanted.status
    has_served = before is not None and before.phase in {
        ServicePhase.RUNNING,
        ServicePhase.DEGRADED,
    }
    return ServicePhase.DEGRADED if has_served or serving else ServicePhase.INITIALIZING


def _is_hopeless(present: list[Replica], revision: str) -> bool:
    current = [one for one in present if one.revision == revision]
    return bool(current) and all(
        one.is_dead or (one.phase is ReplicaPhase.WAITING and one.restarts >= CRASHES)
        for one in current
    )


def _trouble(present: list[Replica], revision: str) -> str:
    """Return the reason of the first replica that has one, the present revision first."""
    told = [one for one in present if one.reason and not one.serves]
    told.sort(key=lambda one: (one.revision != revision, not one.is_dead, one.number))
    if not told:
        return ""
    one = told[0]
    again = f", ended {one.restarts} times" if one.restarts else ""
    return f"{one.name} on {one.host_name}{again}: {one.reason}"


def _progress(wanted: Wanted, updated: int, old: int) -> str:
    text = f"{updated} of {wanted.replicas} serve"
    return f"{text}, {old} of an older revision are left" if old else text


def _line(one: Replica) -> ReplicaStatus:
    return ReplicaStatus(
        name=one.name,
        host=one.host_name,
        revision=one.revision,
        phase=one.phase,
        step=one.step,
        serves=one.serves,
        restarts=one.restarts,
        reason=one.reason[:MAX_REASON_CHARS],
    )
