"""Which host gets a replica. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from services.operator.fleet import REFUSED_S, Replica, World
from shared.ids import HostId, ServiceName
from shared.quantities import in_bytes
from shared.spec.footprint import cores_needed, memory_needed
from shared.spec.model import LLMService


class Room(msgspec.Struct, kw_only=True):
    """What is left on a host while a pass gives it replicas."""

    memory_bytes: int | None
    """None: not known; the host itself says no where it is too much."""
    cores: int | None
    """None: not known."""
    gpus: int
    of_service: dict[ServiceName, int]


class Placing:
    """The hosts of one pass, with what the pass has given them already."""

    def __init__(self, world: World, replicas: Mapping[ServiceName, list[Replica]]) -> None:
        self._world = world
        self._rooms: dict[HostId, Room] = {}
        for host_id, host in sorted(world.hosts.items()):
            beat = host.beat
            if not world.is_heard(host) or beat.is_draining:
                continue
            counts = {
                service: sum(one.host == host_id for one in found)
                for service, found in replicas.items()
            }
            known = beat.free_memory_bytes if beat.memory_bytes else None
            self._rooms[host_id] = Room(
                memory_bytes=known, cores=beat.free_cpus, gpus=beat.free_gpus, of_service=counts
            )
        for asked in world.starts.values():
            wanted = world.services.get(asked.service)
            if asked.host in self._rooms and wanted is not None and wanted.spec is not None:
                self._take(asked.host, wanted.spec)

    def place(self, spec: LLMService) -> tuple[HostId | None, str]:
        """Return the host for one more replica, and count it there; or none, and why."""
        if not self._rooms:
            return None, "no host is heard"
        in_zone = [
            host
            for host in self._rooms
            if not spec.zone or self._world.hosts[host].beat.zone == spec.zone
        ]
        if not in_zone:
            return None, f"no host of zone {spec.zone!r} is heard"
        found: list[HostId] = []
        lacks = ""
        for host in in_zone:
            lack = self._lack(host, spec)
            if lack:
                lacks = lack
            else:
                found.append(host)
        if not found:
            return None, lacks
        best = min(found, key=lambda host: self._rank(host, spec.name))
        self._take(best, spec)
        return best, ""

    def _lack(self, host: HostId, spec: LLMService) -> str:
        """Return what a host lacks for a replica; empty: nothing."""
        room, name = self._rooms[host], self._world.hosts[host].beat.name
        refusal = self._world.refusals.get((spec.name, host))
        if refusal is not None and self._world.now_s - refusal.at_s < REFUSED_S:
            return f"{name}: {refusal.reason}"
        if spec.resources.gpu > room.gpus:
            return f"{name} has {room.gpus} GPUs free of {spec.resources.gpu} that a replica needs"
        cores = cores_needed(spec)
        if room.cores is not None and cores > room.cores:
            return f"{name} has {room.cores} cores free of {cores} that a replica needs"
        needed = memory_needed(spec)
        if room.memory_bytes is not None and needed > room.memory_bytes:
            return f"{name} has {in_bytes(room.memory_bytes)} free of {in_bytes(needed)} that a replica needs"
        return ""

    def _rank(self, host: HostId, service: ServiceName) -> tuple[int, int, str]:
        room = self._rooms[host]
        return room.of_service.get(service, 0), -(room.memory_bytes or 0), host

    def _take(self, host: HostId, spec: LLMService) -> None:
        room = self._rooms[host]
        room.of_service[spec.name] = room.of_service.get(spec.name, 0) + 1
        room.gpus -= spec.resources.gpu
        if room.cores is not None:
            room.cores -= cores_needed(spec)
        if room.memory_bytes is not None:
            room.memory_bytes -= memory_needed(spec)
