"""The replicas of each service, from what hosts say, from orders that they have not confirmed yet, and from what was last written. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from services.operator.fleet import ASK_AGAIN_S, Host, Replica, World
from shared.ids import HostId, ServiceName
from shared.messages import ReplicaPhase, ReplicaState


class Observed(msgspec.Struct, frozen=True):
    """All that runs, or was told to."""

    replicas: dict[ServiceName, list[Replica]]
    """By number; each name once."""
    doubles: dict[ServiceName, list[Replica]]
    """Those whose names others have: their host was away while they were replaced."""


def observe(world: World) -> Observed:
    """Return the replicas of every service that has one."""
    found: dict[str, tuple[ServiceName, Replica]] = {}
    doubles: dict[ServiceName, list[Replica]] = {}
    told = sorted(_told(world), key=lambda item: _weight(world, item[1]))
    for service, replica in told:
        if replica.name not in found:
            found[replica.name] = (service, replica)
        elif _is_heard(world, replica) and not replica.is_leaving:
            doubles.setdefault(service, []).append(replica)
    for service, replica in (*_ordered(world), *_written(world)):
        found.setdefault(replica.name, (service, replica))
    replicas: dict[ServiceName, list[Replica]] = {}
    for service, replica in found.values():
        replicas.setdefault(service, []).append(replica)
    for present in replicas.values():
        present.sort(key=lambda one: (one.number, one.name))
    return Observed(replicas, doubles)


def _weight(world: World, one: Replica) -> tuple[bool, bool, bool, str]:
    """Order of those that have one name: the first counts."""
    is_running = one.phase is ReplicaPhase.RUNNING
    return not _is_heard(world, one), one.is_leaving, not is_running, one.host or ""


def _is_heard(world: World, one: Replica) -> bool:
    return one.host is not None and world.is_heard(world.hosts[one.host])


def _told(world: World) -> Iterator[tuple[ServiceName, Replica]]:
    """What hosts say; of a lost one only what serves on."""
    for host_id, host in world.hosts.items():
        is_lost = _is_lost(world, host)
        for state in host.beat.replicas:
            replica = _replica(world, host_id, host, state)
            if replica.serves or not is_lost:
                yield state.service, replica


def _ordered(world: World) -> Iterator[tuple[ServiceName, Replica]]:
    """What was ordered and is not told yet."""
    for name, asked in world.starts.items():
        if world.now_s - asked.at_s <= ASK_AGAIN_S:
            host = world.hosts.get(asked.host)
            yield (
                asked.service,
                Replica(
                    name=name,
                    host=asked.host,
                    host_name=host.beat.name if host is not None else "",
                    revision=asked.revision,
                    phase=ReplicaPhase.PREPARING,
                ),
            )


def _written(world: World) -> Iterator[tuple[ServiceName, Replica]]:
    """What was there by the last status on machines that are not known: all, while those may still be heard; what serves, later too."""
    known = {host.beat.name for host in world.hosts.values()}
    for service, wanted in world.services.items():
        for line in wanted.status.replicas if wanted.status is not None else ():
            serves = line.phase is ReplicaPhase.RUNNING and world.serves(line.name)
            if line.host not in known and (serves or not world.has_listened_long):
                yield (
                    service,
                    Replica(
                        name=line.name,
                        host=None,
                        host_name=line.host,
                        revision=line.revision,
                        phase=line.phase,
                        serves=serves,
                        restarts=line.restarts,
                    ),
                )


def _is_lost(world: World, host: Host) -> bool:
    """Whether a host's replicas are gone: it is silent for long, or another life of it is heard on the same machine."""
    if world.is_heard(host):
        return False
    return world.is_lost(host) or any(
        other.beat.name == host.beat.name
        and other.beat.host != host.beat.host
        and other.heard_s > host.heard_s
        for other in world.hosts.values()
    )


def _replica(world: World, host_id: HostId, host: Host, state: ReplicaState) -> Replica:
    phase = state.phase
    stop = world.stops.get(state.name)
    if stop is not None and stop.host == host_id and world.now_s - stop.at_s <= ASK_AGAIN_S:
        phase = ReplicaPhase.STOPPING
    return Replica(
        name=state.name,
        host=host_id,
        host_name=host.beat.name,
        revision=state.revision,
        phase=phase,
        # Both must say so: a beat may be of an earlier replica of this name, and a host may not know yet that its engine hangs.
        serves=phase is ReplicaPhase.RUNNING and world.serves(state.name),
        step=state.step,
        restarts=state.restarts,
        reason=state.reason,
        fingerprint=state.fingerprint,
    )
