"""Services as people read them: lines, wide lines, everything about one. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from services.console.plain import cleaned
from shared.declared import Service
from shared.errors import UserError
from shared.messages import ReplicaStatus, ServicePhase, StatusRecord
from shared.quantities import age
from shared.spec.engine import not_yet
from shared.spec.model import LLMService
from shared.spec.writing import to_yaml

MICROSECONDS = 1_000_000
HEAD = ("NAME", "PHASE", "READY", "UPDATED", "GENERATION", "SINCE")
WIDE = ("REVISION", "MODEL", "BACKEND", "REPLICAS", "HOSTS")


def table(services: Sequence[Service], *, now_us: int, wide: bool) -> str:
    """Return a line for each service, the reason of those that are not well below it."""
    rows = [(*HEAD, *(WIDE if wide else ()))]
    rows += [_row(cleaned(one), now_us=now_us, wide=wide) for one in services]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row, one in zip(rows, (None, *services), strict=True):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
        if one is not None and one.status is not None and one.status.reason:
            lines.append(f"  {cleaned(one.status.reason)}")
    if not services:
        lines.append("none is declared; `headrace apply -f FILE` declares one")
    return "\n".join(lines)


def _row(one: Service, *, now_us: int, wide: bool) -> tuple[str, ...]:
    status = one.status
    phase = status.phase if status is not None else ServicePhase.PENDING
    ready = f"{status.ready}/{status.wanted}" if status is not None else "-"
    since = age((now_us - status.since_us) / MICROSECONDS) if status and status.since_us else "-"
    updated = str(status.updated) if status is not None else "-"
    row = (one.record.service, phase, ready, updated, str(one.record.generation), since)
    return (*row, *_wide(one)) if wide else row


def _wide(one: Service) -> tuple[str, ...]:
    hosts = sorted({line.host for line in one.status.replicas}) if one.status else []
    revision = one.record.revision
    try:
        spec = one.spec
    except UserError:
        return (revision, "?", "?", "?", ", ".join(hosts))
    bounds = f"{spec.scaling.min_replicas} to {spec.scaling.most}"
    return (revision, spec.model.name, spec.engine.backend, bounds, ", ".join(hosts))


def description(one: Service, *, now_us: int) -> str:
    """Return everything that is known of a service."""
    one = cleaned(one)
    record = one.record
    lines = [f"Name:        {record.service}"]
    lines += _state(one, now_us)
    lines += [
        f"Generation:  {record.generation}, revision {record.revision}",
        f"Applied:     {_applied(one, now_us)}",
    ]
    if record.fingerprint:
        lines.append(f"Model files: {record.fingerprint}")
    if one.desired is not None:
        lines.append(
            f"Scaled:      to {one.desired.replicas} by {one.desired.by} {one.desired.reason}"
        )
    lines += _replicas(one.status)
    lines += _spec(one)
    return "\n".join(line.rstrip() for line in lines)


def _state(one: Service, now_us: int) -> Iterator[str]:
    status = one.status
    if status is None:
        yield "Phase:       Pending: no operator has looked at it yet"
        return
    since = f" for {age((now_us - status.since_us) / MICROSECONDS)}" if status.since_us else ""
    yield f"Phase:       {status.phase}{since}"
    if status.reason:
        yield f"Reason:      {status.reason}"
    yield f"Replicas:    {status.ready} serve of {status.wanted} wanted, {status.updated} of the present revision"


def _applied(one: Service, now_us: int) -> str:
    record = one.record
    when = f"{age((now_us - record.applied_us) / MICROSECONDS)} ago" if record.applied_us else "?"
    by = f" by {record.by}" if record.by else ""
    source = f" from {record.source}" if record.source else ""
    return f"{when}{by}{source}{', being deleted' if record.deleted else ''}"


def _replicas(status: StatusRecord | None) -> Iterator[str]:
    if status is None or not status.replicas:
        return
    yield ""
    yield f"  {'REPLICA':<20}{'HOST':<16}{'PHASE':<11}{'SERVES':<8}{'REVISION':<14}{'RESTARTS':>8}  "
    for one in status.replicas:
        yield _replica(one)


def _replica(one: ReplicaStatus) -> str:
    serves = "yes" if one.serves else "no"
    told = one.reason or one.step
    return f"  {one.name:<20}{one.host:<16}{one.phase:<11}{serves:<8}{one.revision:<14}{one.restarts:>8}  {told}"


def _spec(one: Service) -> Iterator[str]:
    yield ""
    try:
        spec = one.spec
    except UserError as error:
        yield f"What was declared cannot be read: {error}"
        return
    yield to_yaml(spec).rstrip()
    yield from (f"# {line}" for line in remarks(spec))


def remarks(spec: LLMService) -> list[str]:
    """Return what a person should know of a spec."""
    idle = not_yet(spec)
    return [f"kept, and nothing acts on it yet: {', '.join(idle)}"] if idle else []


def progress(name: str, status: StatusRecord | None) -> str:
    """Return a line on how far a service is."""
    if status is None:
        return f"{name}: waiting for an operator"
    steps = sorted(
        {
            f"{one.name} {one.step or one.phase}"
            for one in status.replicas
            if not one.serves and one.phase != "stopping"
        }
    )
    text = f"{name}: {status.phase}, {status.updated} of {status.wanted} serve"
    return cleaned(f"{text}{' (' + ', '.join(steps[:3]) + ')' if steps else ''}")
