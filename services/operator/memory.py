"""What an operator has heard and ordered since it began. Not kept: what matters shows in records and heartbeats. Pure."""

from __future__ import annotations

from services.operator.fleet import ASK_AGAIN_S, REFUSED_S, Asked, Engine, Host, Refusal
from shared.ids import HostId, ServiceName
from shared.messages import (
    ENGINE_GONE_S,
    EngineHeartbeat,
    EngineState,
    HostHeartbeat,
    ReplicaPhase,
)

FORGET_S = 60.0
MAX_HOSTS = 1000
MAX_ENGINES = 10_000


class Memory:
    """Hosts, engines and orders; times are of one monotonic clock."""

    def __init__(self) -> None:
        self.hosts: dict[HostId, Host] = {}
        self.engines: dict[str, Engine] = {}
        self.starts: dict[str, Asked] = {}
        self.stops: dict[str, Asked] = {}
        self.refusals: dict[tuple[ServiceName, HostId], Refusal] = {}

    @property
    def highest_epoch(self) -> int:
        """The highest epoch that a host says to obey."""
        return max((host.beat.epoch for host in self.hosts.values()), default=0)

    def heard_host(self, beat: HostHeartbeat, *, now: float) -> bool:
        """Take a host's heartbeat; return whether it tells anything new."""
        before = self.hosts.get(beat.host)
        if before is None and len(self.hosts) >= MAX_HOSTS:
            return False
        if before is not None and beat.beat <= before.beat.beat:
            return False
        self.hosts[beat.host] = Host(beat=beat, heard_s=now)
        self._confirm(beat)
        return before is None or before.beat.replicas != beat.replicas or beat.is_draining

    def _confirm(self, beat: HostHeartbeat) -> None:
        """Drop the orders that a heartbeat shows."""
        told = {one.name: one for one in beat.replicas}
        for name, asked in list(self.starts.items()):
            if asked.host == beat.host and name in told and told[name].revision == asked.revision:
                del self.starts[name]
        for name, asked in list(self.stops.items()):
            shown = told.get(name)
            if asked.host == beat.host and (shown is None or shown.phase is ReplicaPhase.STOPPING):
                del self.stops[name]

    def heard_engine(self, beat: EngineHeartbeat, *, now: float) -> bool:
        """Take an engine's heartbeat; return whether it serves from now on, or no longer."""
        if not beat.name:
            return False
        before = self.engines.get(beat.name)
        if before is None and len(self.engines) >= MAX_ENGINES:
            return False
        if before is not None and _says_nothing(before, beat, now=now):
            return False
        self.engines[beat.name] = Engine(beat=beat, heard_s=now)
        was_ready = before is not None and before.beat.state is EngineState.READY
        return was_ready != (beat.state is EngineState.READY)

    def prune(self, *, now: float, listens_since_s: float) -> None:
        """Forget what has been silent for long while we listened, and orders that will be given again."""
        self.hosts = {
            k: v for k, v in self.hosts.items() if now - max(v.heard_s, listens_since_s) <= FORGET_S
        }
        self.engines = {k: v for k, v in self.engines.items() if now - v.heard_s <= FORGET_S}
        self.starts = {k: v for k, v in self.starts.items() if now - v.at_s <= ASK_AGAIN_S}
        self.stops = {k: v for k, v in self.stops.items() if now - v.at_s <= ASK_AGAIN_S}
        self.refusals = {k: v for k, v in self.refusals.items() if now - v.at_s <= REFUSED_S}

    def forget_orders(self) -> None:
        """A new term begins: what was ordered before may never have arrived."""
        self.starts, self.stops, self.refusals = {}, {}, {}


def _says_nothing(before: Engine, beat: EngineHeartbeat, *, now: float) -> bool:
    """Whether a beat is older than what is known, or of another engine of this name that leaves while one serves."""
    if before.beat.engine == beat.engine:
        return beat.beat <= before.beat.beat
    is_served = before.beat.state is EngineState.READY and now - before.heard_s <= ENGINE_GONE_S
    return is_served and beat.state is not EngineState.READY
