"""One pass: from the world as it is to what is done about it. Pure, level-based: what was done before shows in the world, or is done again.

Bounds that hold at every step: replicas, those that leave and those that were only ordered included, are at most wanted + maxSurge while a
change goes through (or as many as there were); one that serves, or whose engine is only silent, is stopped only while
wanted − maxUnavailable others serve. What a host that was cut off brings back comes on top, and goes first.
"""

from __future__ import annotations

from collections.abc import Iterator

from services.operator.fleet import (
    Action,
    Remove,
    Replica,
    Start,
    Stop,
    Wanted,
    World,
    WriteStatus,
)
from services.operator.observed import observe
from services.operator.placement import Placing
from services.operator.report import fingerprints_of, status_of, with_same_time
from shared.ids import ServiceName
from shared.messages import ReplicaPhase


def reconcile(world: World) -> list[Action]:
    """Return what to do now, in order of services' names; nothing where the world is as it shall be."""
    observed = observe(world)
    replicas = observed.replicas
    placing = Placing(world, replicas)
    actions: list[Action] = []
    for service in sorted({*world.services, *replicas} - world.unreadable):
        wanted = world.services.get(service)
        found = replicas.get(service, [])
        actions += _stop_all(service, observed.doubles.get(service, []))
        if wanted is None:
            # Nobody declared it: left over from a record that went while its host was away.
            actions += _stop_all(service, found)
            continue
        actions += _service(world, placing, wanted, found)
    return actions


def _service(
    world: World, placing: Placing, wanted: Wanted, replicas: list[Replica]
) -> Iterator[Action]:
    if wanted.record.deleted and not replicas:
        yield Remove(service=wanted.record.service)
        return
    lacks = ""
    if wanted.spec is not None or wanted.record.deleted:
        starts, lacks = _starts(placing, wanted, replicas)
        yield from starts
        yield from _stops(wanted, replicas)
    status = with_same_time(status_of(world, wanted, replicas, lacks), wanted.status)
    if status != wanted.status:
        yield WriteStatus(record=status)


def _starts(placing: Placing, wanted: Wanted, replicas: list[Replica]) -> tuple[list[Start], str]:
    """Return the replicas to start, and what is in the way of the rest."""
    record, spec = wanted.record, wanted.spec
    if spec is None or record.deleted:
        return [], ""
    current = [one for one in replicas if one.revision == record.revision and not one.is_leaving]
    missing = wanted.replicas - len(current)
    if missing <= 0:
        return [], ""
    is_change = any(one.revision != record.revision for one in replicas)
    limit = wanted.replicas + (spec.scaling.max_surge if is_change else 0)
    # What cannot serve takes no place from what shall replace it.
    taken = sum(not (one.is_dead and one.revision != record.revision) for one in replicas)
    names = {one.name for one in replicas}
    fingerprint = record.fingerprint or fingerprints_of(wanted, replicas).get(record.revision, "")
    found: list[Start] = []
    while missing > len(found) and taken + len(found) < limit:
        host, lacks = placing.place(spec)
        if host is None:
            return found, lacks
        name = _free_name(record.service, names)
        names.add(name)
        found.append(
            Start(
                host=host,
                name=name,
                service=record.service,
                revision=record.revision,
                spec=record.spec,
                fingerprint=fingerprint,
            )
        )
    return found, ""


def _stops(wanted: Wanted, replicas: list[Replica]) -> list[Stop]:
    """Return the replicas to stop: those that are too many, and those of older revisions as newer ones serve."""
    record = wanted.record
    present = [one for one in replicas if not one.is_leaving]
    unavailable = wanted.spec.scaling.max_unavailable if wanted.spec is not None else 0
    floor = 0 if record.deleted else max(0, wanted.replicas - unavailable)
    serving = sum(one.serves for one in present)
    current = sum(one.revision == record.revision for one in present)
    found: list[Stop] = []
    for one in sorted(present, key=lambda one: _first_to_go(record.revision, one)):
        is_old = one.revision != record.revision
        if not (is_old or current > wanted.replicas):
            continue
        # One that runs and is not heard may serve: a missed beat must cost no replica that works.
        if one.phase is ReplicaPhase.RUNNING and serving - one.serves < floor:
            continue
        found += _stop_all(record.service, [one])
        serving -= one.serves
        current -= not is_old
    return found


def _first_to_go(revision: str, one: Replica) -> tuple[bool, bool, bool, int]:
    """Order in which replicas are stopped: dead ones, older ones, those that do not serve, the last ones."""
    return (not one.is_dead, one.revision == revision, one.serves, -one.number)


def _stop_all(service: ServiceName, replicas: list[Replica]) -> list[Stop]:
    """Return the orders that end replicas, where somebody is there to take them."""
    return [
        Stop(host=one.host, name=one.name, service=service, revision=one.revision)
        for one in replicas
        if one.host is not None and not one.is_leaving
    ]


def _free_name(service: ServiceName, taken: set[str]) -> str:
    """Return the name with the lowest number that no replica has."""
    number = 0
    while f"{service}-{number}" in taken:
        number += 1
    return f"{service}-{number}"
