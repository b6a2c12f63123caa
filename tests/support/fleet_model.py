"""Hosts and engines as values that obey the operator's orders step by step, for tests of its decisions."""

from __future__ import annotations

import random

import msgspec

from services.operator.fleet import (
    Action,
    Asked,
    Refusal,
    Remove,
    Start,
    Stop,
    Wanted,
    World,
    WriteStatus,
)
from services.operator.memory import Memory
from shared.ids import EngineId, HostId, ServiceName
from shared.messages import (
    EngineHeartbeat,
    EngineState,
    HostHeartbeat,
    ReplicaPhase,
    ReplicaState,
    ServiceRecord,
    StatusRecord,
)
from shared.spec.model import LLMService
from shared.spec.revision import revision
from shared.spec.writing import to_document

STEP_S = 0.5
LISTEN_S = 1.6
CRASH_PAUSE_S = 2.0


class _Process(msgspec.Struct, kw_only=True):
    state: ReplicaState
    engine: str
    ready_at_s: float
    again_at_s: float = float("inf")
    gone_at_s: float = float("inf")


class FleetModel:
    """Some hosts, what runs on them, what an operator remembers, and the records."""

    def __init__(
        self, seed: int, *, hosts: int = 2, start_s: float = 3.0, drain_s: float = 1.0
    ) -> None:
        self.draw = random.Random(seed)
        self.now_s = 100.0
        self.start_s, self.drain_s = start_s, drain_s
        self.specs: dict[ServiceName, LLMService] = {}
        self.records: dict[ServiceName, ServiceRecord] = {}
        self.desired: dict[ServiceName, int] = {}
        self.status: dict[ServiceName, StatusRecord] = {}
        self.lost_share = 0.0
        """Share of orders that never arrive."""
        self.silent: set[HostId] = set()
        """Hosts that are cut off, their engines with them."""
        self.hung: set[HostId] = set()
        """Hosts that say nothing while their engines beat."""
        self.mute_share = 0.0
        """Share of engines' beats that are lost, for so long that they count as silent."""
        self.broken: set[str] = set()
        """Revisions whose engines never become ready."""
        self.memory: dict[HostId, int] = {}
        self._processes: dict[HostId, dict[str, _Process]] = {}
        self.known = Memory()
        self.listens_since_s = float("-inf")
        self.is_away = False
        """The operator has no bus."""
        self._lives = 0
        for number in range(hosts):
            self.add_host(HostId(f"h{number}"))

    def add_host(self, host: HostId, *, memory: int = 0) -> None:
        """Bring a host with nothing on it."""
        self._processes[host] = {}
        self.memory[host] = memory

    def kill_host(self, host: HostId) -> None:
        """End a host and all that runs on it."""
        del self._processes[host]

    def declare(self, spec: LLMService) -> None:
        """Write a service's record."""
        before = self.records.get(spec.name)
        self.specs[spec.name] = spec
        self.records[spec.name] = ServiceRecord(
            service=spec.name,
            spec=to_document(spec),
            generation=(before.generation if before else 0) + 1,
            revision=revision(spec),
        )

    def delete(self, service: ServiceName) -> None:
        """Mark a service as deleted."""
        self.records[service] = msgspec.structs.replace(self.records[service], deleted=True)

    def forget(self) -> None:
        """Restart the operator: what it had in memory is gone, what it heard too."""
        self.known = Memory()
        self.listens_since_s = self.now_s
        self._hear()

    @property
    def acts(self) -> bool:
        """Whether the operator has listened for long enough."""
        return not self.is_away and self.now_s - self.listens_since_s >= LISTEN_S

    def come_back(self) -> None:
        """Give the operator its bus again."""
        if self.is_away:
            self.is_away, self.listens_since_s = False, self.now_s

    def is_reached(self, host: HostId) -> bool:
        """Whether orders arrive there."""
        return host in self._processes and host not in self.silent | self.hung

    def hosts(self) -> list[HostId]:
        """All hosts that live."""
        return list(self._processes)

    def crash(self, name: str) -> None:
        """End a process by itself; its host starts it again after a pause."""
        for found in self._processes.values():
            if name in found and found[name].state.phase in _ALIVE:
                state = found[name].state
                found[name].state = msgspec.structs.replace(
                    state,
                    phase=ReplicaPhase.WAITING,
                    restarts=state.restarts + 1,
                    reason="exit code 1",
                )
                found[name].ready_at_s = float("inf")
                found[name].again_at_s = self.now_s + CRASH_PAUSE_S

    def processes(self, service: ServiceName) -> list[ReplicaState]:
        """Everything that runs of a service, in truth."""
        return [
            process.state
            for found in self._processes.values()
            for process in found.values()
            if process.state.service == service
        ]

    def serving(self, service: ServiceName) -> int:
        """How many of them serve and are not leaving."""
        return sum(
            process.state.phase is ReplicaPhase.RUNNING
            for found in self._processes.values()
            for process in found.values()
            if process.state.service == service
        )

    def world(self) -> World:
        """What the operator knows now."""
        return World(
            now_s=self.now_s,
            unix_us=int(self.now_s * 1e6),
            epoch=1,
            services={
                name: Wanted(
                    record=record,
                    spec=self.specs[name],
                    desired=self.desired.get(name),
                    status=self.status.get(name),
                )
                for name, record in self.records.items()
            },
            listens_since_s=self.listens_since_s,
            hosts=dict(self.known.hosts),
            engines=dict(self.known.engines),
            starts=dict(self.known.starts),
            stops=dict(self.known.stops),
            refusals=dict(self.known.refusals),
        )

    def act(self, action: Action) -> None:
        """Carry an action out, or lose it."""
        match action:
            case Start() | Stop():
                self._order(action)
            case WriteStatus(record=record):
                self.status[record.service] = record
            case Remove(service=service):
                for found in (self.records, self.specs, self.status, self.desired):
                    found.pop(service, None)

    def _order(self, action: Start | Stop) -> None:
        orders = self.known.starts if isinstance(action, Start) else self.known.stops
        orders[action.name] = Asked(
            host=action.host,
            service=action.service,
            revision=action.revision,
            at_s=self.now_s,
        )
        if self.draw.random() < self.lost_share or not self.is_reached(action.host):
            return
        if isinstance(action, Stop):
            self._stop(action)
        elif reason := self._start(action):
            del self.known.starts[action.name]
            refusal = Refusal(reason=reason, at_s=self.now_s)
            self.known.refusals[action.service, action.host] = refusal

    def _start(self, action: Start) -> str:
        """Start a process; return why not."""
        found = self._processes[action.host]
        there = found.get(action.name)
        if there is not None:
            state = there.state
            is_same = state.revision == action.revision and state.phase is not ReplicaPhase.STOPPING
            return "" if is_same else f"revision {state.revision} has this name here"
        limit = self.memory[action.host]
        if limit and len(found) >= limit:
            return f"no room for more than {limit}"
        self._lives += 1
        is_broken = action.revision in self.broken
        found[action.name] = _Process(
            state=ReplicaState(
                name=action.name,
                service=action.service,
                revision=action.revision,
                phase=ReplicaPhase.STARTING,
                fingerprint=f"print of {action.revision}",
            ),
            engine=f"e{self._lives}",
            ready_at_s=float("inf")
            if is_broken
            else self.now_s + self.draw.random() * self.start_s,
        )
        return ""

    def _stop(self, action: Stop) -> None:
        process = self._processes.get(action.host, {}).get(action.name)
        if process is None or process.state.phase is ReplicaPhase.STOPPING:
            return
        process.state = msgspec.structs.replace(process.state, phase=ReplicaPhase.STOPPING)
        process.gone_at_s = self.now_s + self.draw.random() * self.drain_s

    def tick(self) -> None:
        """Let half a second pass."""
        self.now_s += STEP_S
        for found in self._processes.values():
            for name, process in list(found.items()):
                self._age(found, name, process)
        self._hear()

    def _age(self, found: dict[str, _Process], name: str, process: _Process) -> None:
        phase = process.state.phase
        if self.now_s >= process.gone_at_s:
            del found[name]
        elif phase is ReplicaPhase.WAITING and self.now_s >= process.again_at_s:
            self._lives += 1
            process.engine = f"e{self._lives}"
            process.state = msgspec.structs.replace(process.state, phase=ReplicaPhase.STARTING)
            process.ready_at_s = self.now_s + self.draw.random() * self.start_s
        elif phase is ReplicaPhase.STARTING and self.now_s >= process.ready_at_s:
            process.state = msgspec.structs.replace(
                process.state, phase=ReplicaPhase.RUNNING, reason=""
            )

    def _hear(self) -> None:
        if self.is_away:
            return
        for host, found in self._processes.items():
            if host in self.silent:
                continue
            if host not in self.hung:
                beat = HostHeartbeat(
                    host=host,
                    beat=int(self.now_s * 2),
                    name=f"node {host}",
                    replicas=[process.state for process in found.values()],
                )
                self.known.heard_host(beat, now=self.now_s)
            for process in found.values():
                if self.now_s >= process.ready_at_s and self.draw.random() >= self.mute_share:
                    self._hear_engine(process)
        self.known.prune(now=self.now_s, listens_since_s=self.listens_since_s)

    def _hear_engine(self, process: _Process) -> None:
        state = process.state
        is_leaving = state.phase is ReplicaPhase.STOPPING
        beat = EngineHeartbeat(
            engine=EngineId(process.engine),
            service=state.service,
            beat=int(self.now_s * 2),
            state=EngineState.DRAINING if is_leaving else EngineState.READY,
            backend="fake",
            name=state.name,
        )
        self.known.heard_engine(beat, now=self.now_s)


_ALIVE = {ReplicaPhase.STARTING, ReplicaPhase.RUNNING}
