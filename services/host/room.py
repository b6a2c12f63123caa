"""What a host has to give and who has it: memory, cores, GPUs, ports of metrics pages. Pure.

Cores and GPUs belong to one replica alone. Memory is promised, not measured: what a replica says that it will take is kept free for it
from the moment it is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from typing_extensions import override

from shared.spec.footprint import cores_needed, memory_needed
from shared.spec.model import GIB, LLMService


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica will take."""

    memory_bytes: int = 0
    cores: int = 0
    """0: it may use any that nobody has for itself."""
    gpus: int = 0


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica was given."""

    memory_bytes: int = 0
    cores: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    metrics_port: int = 0
    """0: any that is free."""


class Lack(msgspec.Struct, frozen=True):
    """Why there is no room."""

    reason: str


def claim_of(spec: LLMService) -> Claim:
    """Return what a replica of a service takes before the size of its weights is known."""
    return Claim(
        memory_bytes=memory_needed(spec), cores=cores_needed(spec), gpus=spec.resources.gpu
    )


class Room:
    """All that a host has."""

    def __init__(
        self,
        *,
        memory_bytes: int = 0,
        cores: Sequence[int] = (),
        gpus: Sequence[str] = (),
        ports: Sequence[int] = (),
    ) -> None:
        self.memory_bytes = memory_bytes
        """0: not known, and nobody is refused for it."""
        self.cores = tuple(cores)
        self.gpus = tuple(gpus)
        self._ports = tuple(ports)
        """None: each replica takes any that is free."""
        self._grants: dict[str, Grant] = {}

    @override
    def __repr__(self) -> str:
        return f"<Room {len(self._grants)} replicas, {self.free_memory_bytes / GIB:.1f} GiB free>"

    @property
    def free_memory_bytes(self) -> int:
        """What nobody was promised."""
        promised = sum(grant.memory_bytes for grant in self._grants.values())
        return max(0, self.memory_bytes - promised)

    @property
    def free_cores(self) -> list[int]:
        """Cores that no replica has for itself."""
        given = {core for grant in self._grants.values() for core in grant.cores}
        return [core for core in self.cores if core not in given]

    @property
    def free_gpus(self) -> list[str]:
        """Devices that no replica has."""
        given = {gpu for grant in self._grants.values() for gpu in grant.gpus}
        return [gpu for gpu in self.gpus if gpu not in given]

    def grant_of(self, name: str) -> Grant:
        """Return what a replica was given."""
        return self._grants[name]

    def give(self, name: str, claim: Claim) -> Grant | Lack:
        """Give a replica what it claims, all or nothing."""
        if lack := self._lack(claim):
            return Lack(lack)
        taken = {grant.metrics_port for grant in self._grants.values()}
        port = next((port for port in self._ports if port not in taken), 0)
        if self._ports and not port:
            return Lack(
                f"all {len(self._ports)} ports for metrics pages are given away; widen metrics-ports"
            )
        grant = Grant(
            memory_bytes=claim.memory_bytes,
            cores=tuple(self.free_cores[: claim.cores]),
            gpus=tuple(self.free_gpus[: claim.gpus]),
            metrics_port=port,
        )
        self._grants[name] = grant
        return grant

    def promise(self, name: str, memory_bytes: int) -> Lack | None:
        """Set what a replica will take in memory, once more is known of it; nothing changes where there is no room."""
        grant = self._grants[name]
        more = memory_bytes - grant.memory_bytes
        if self.memory_bytes and more > self.free_memory_bytes:
            return Lack(_too_much(memory_bytes, self.free_memory_bytes + grant.memory_bytes))
        self._grants[name] = msgspec.structs.replace(grant, memory_bytes=memory_bytes)
        return None

    def take_back(self, name: str) -> None:
        """Have again what a replica was given. A second call changes nothing."""
        self._grants.pop(name, None)

    def _lack(self, claim: Claim) -> str:
        if self.memory_bytes and claim.memory_bytes > self.free_memory_bytes:
            return _too_much(claim.memory_bytes, self.free_memory_bytes)
        if claim.cores > len(self.free_cores):
            return f"it wants {claim.cores} cores, {len(self.free_cores)} of {len(self.cores)} are free"
        if claim.gpus > len(self.free_gpus):
            return f"it wants {claim.gpus} GPUs, {len(self.free_gpus)} of {len(self.gpus)} are free"
        return ""


def _too_much(wanted_bytes: int, free_bytes: int) -> str:
    return f"it needs about {wanted_bytes / GIB:.1f} GiB of memory, {free_bytes / GIB:.1f} GiB are free"
