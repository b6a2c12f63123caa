"""The replicas of each service, from what hosts say and from orders that they have not confirmed yet. Pure."""

from __future__ import annotations

from services.operator.fleet import ASK_AGAIN_S, HOST_LOST_S, Host, Replica, World
from shared.ids import HostId, ServiceName
from shared.messages import ReplicaPhase, ReplicaState


def replicas_of(world: World) -> dict[ServiceName, list[Replica]]:
    """Return the replicas of every service that has one, by number."""
    found: dict[str, tuple[ServiceName, Replica]] = {}
    for host_id, host in sorted(world.hosts.items(), key=lambda item: item[1].heard_s):
        if _is_lost(world, host):
            continue
        for state in host.beat.replicas:
            replica = _replica(world, host_id, host, state)
            before = found.get(state.name)
            # Of two with one name the one that serves counts: the other host has not heard yet that it is rid of it.
            if before is None or replica.serves or not before[1].serves:
                found[state.name] = (state.service, replica)
    for name, asked in world.starts.items():
        if name not in found and world.now_s - asked.at_s <= ASK_AGAIN_S:
            host_beat = world.hosts[asked.host].beat if asked.host in world.hosts else None
            found[name] = (
                asked.service,
                Replica(
                    name=name,
                    host=asked.host,
                    host_name=host_beat.name if host_beat else "",
                    revision=asked.revision,
                    phase=ReplicaPhase.PREPARING,
                ),
            )
    by_service: dict[ServiceName, list[Replica]] = {}
    for service, replica in found.values():
        by_service.setdefault(service, []).append(replica)
    for replicas in by_service.values():
        replicas.sort(key=lambda one: (one.number, one.name))
    return by_service


def _is_lost(world: World, host: Host) -> bool:
    """Whether a host's replicas are gone: it is silent for long, or another life of it is heard on the same machine."""
    if world.is_heard(host):
        return False
    if world.now_s - host.heard_s > HOST_LOST_S:
        return True
    return any(
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
