"""What the operator knows of the world at one moment, and what it can do about it. Values only."""

from __future__ import annotations

import msgspec

from shared.ids import HostId, ServiceName
from shared.messages import (
    ENGINE_GONE_S,
    EngineHeartbeat,
    EngineState,
    HostHeartbeat,
    ReplicaPhase,
    ServiceRecord,
    StatusRecord,
)
from shared.spec.model import LLMService

HOST_GONE_S = ENGINE_GONE_S
"""Silence after which a host gets no orders: three beats missed."""
HOST_LOST_S = 10.0
"""Silence after which its replicas are replaced, those excepted whose engines are still heard: a busy host may miss beats. Also what hosts
have to come back after the bus was away, and what a new leader waits for those that it knows only by what its predecessor wrote."""
ASK_AGAIN_S = 5.0
"""An order that was given and does not show in its host's heartbeats is given again: it may have been lost, and twice does no harm."""
REFUSED_S = 10.0
"""A host that had no room is not asked again for so long."""


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """A host, as it was last heard."""

    beat: HostHeartbeat
    heard_s: float


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """An engine of ours, as it was last heard."""

    beat: EngineHeartbeat
    heard_s: float


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """An order that was given."""

    host: HostId
    service: ServiceName
    revision: str
    at_s: float


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A host would not run a replica."""

    reason: str
    at_s: float


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What one service shall be."""

    record: ServiceRecord
    spec: LLMService | None
    """None: the record cannot be understood; `problem` says why."""
    problem: str = ""
    desired: int | None = None
    """None: as many as the spec says at least."""
    status: StatusRecord | None = None
    """What was last written of it."""

    @property
    def replicas(self) -> int:
        """Return how many replicas there shall be."""
        if self.record.deleted or self.spec is None:
            return 0
        scaling = self.spec.scaling
        chosen = scaling.min_replicas if self.desired is None else self.desired
        return max(scaling.min_replicas, min(chosen, scaling.most))


class World(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a pass decides on."""

    now_s: float
    """Of the operator's monotonic clock, as are all times in here."""
    unix_us: int
    epoch: int
    listens_since_s: float = float("-inf")
    """Since when hosts are listened to without a gap: silence before it says nothing."""
    services: dict[ServiceName, Wanted]
    hosts: dict[HostId, Host]
    engines: dict[str, Engine] = {}
    """By name of the replica."""
    starts: dict[str, Asked] = {}
    """Orders to start, by name of the replica, that no heartbeat has confirmed."""
    stops: dict[str, Asked] = {}
    refusals: dict[tuple[ServiceName, HostId], Refusal] = {}
    unreadable: frozenset[str] = frozenset()
    """Services whose records are there and cannot be read: they are left as they are."""

    @property
    def has_listened_long(self) -> bool:
        """Whether a host that was not heard by now is lost."""
        return self.now_s - self.listens_since_s > HOST_LOST_S

    def is_lost(self, host: Host) -> bool:
        """Whether a host has been silent for so long that it does not count on."""
        return self.now_s - max(host.heard_s, self.listens_since_s) > HOST_LOST_S

    def is_heard(self, host: Host) -> bool:
        """Whether a host can be given orders."""
        return self.now_s - host.heard_s <= HOST_GONE_S

    def serves(self, name: str) -> bool:
        """Whether the engine of a replica says that it serves."""
        engine = self.engines.get(name)
        return (
            engine is not None
            and engine.beat.state is EngineState.READY
            and self.now_s - engine.heard_s <= ENGINE_GONE_S
        )


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """One replica, as hosts tell it and as it was ordered."""

    name: str
    host: HostId | None
    """None: not heard yet; a leader before us wrote that it is there."""
    host_name: str
    revision: str
    phase: ReplicaPhase
    serves: bool = False
    step: str = ""
    restarts: int = 0
    reason: str = ""
    fingerprint: str = ""

    @property
    def is_leaving(self) -> bool:
        """Whether it was told to stop."""
        return self.phase is ReplicaPhase.STOPPING

    @property
    def is_dead(self) -> bool:
        """Whether it will not serve without a change."""
        return self.phase is ReplicaPhase.FAILED

    @property
    def number(self) -> int:
        """The number at the end of its name."""
        digits = self.name.rpartition("-")[2]
        return int(digits) if digits.isdigit() else 0


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Have a host run a replica."""

    host: HostId
    name: str
    service: ServiceName
    revision: str
    spec: dict[str, object]
    fingerprint: str = ""


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """Have a host drain and end a replica."""

    host: HostId
    name: str
    service: ServiceName
    revision: str


class WriteStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Say how a service is."""

    record: StatusRecord


class Remove(msgspec.Struct, frozen=True, kw_only=True):
    """Forget a deleted service of which nothing runs."""

    service: ServiceName


Action = Start | Stop | WriteStatus | Remove
