"""Hosts and engines as values that obey the operator's orders step by step, for tests of its decisions."""

from __future__ import annotations

import random

import msgspec

from services.operator.fleet import (
    Action,
    Asked,
    Engine,
    Host,
    Refusal,
    Remove,
    Start,
    Stop,
    Wanted,
    World,
    WriteStatus,
)
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


class _Process(msgspec.Struct, kw_only=True):
    state: ReplicaState
    ready_at_s: float
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
        self.broken: set[str] = set()
        """Revisions whose engines never become ready."""
        self.memory: dict[HostId, int] = {}
        self._processes: dict[HostId, dict[str, _Process]] = {}
        self._heard: dict[HostId, Host] = {}
        self._engines: dict[str, Engine] = {}
        self.starts: dict[str, Asked] = {}
        self.stops: dict[str, Asked] = {}
        self.refusals: dict[tuple[ServiceName, HostId], Refusal] = {}
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
        self.starts, self.stops, self.refusals = {}, {}, {}
        self._heard, self._engines = {}, {}
        self._hear()

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
            hosts=dict(self._heard),
            engines=dict(self._engines),
            starts=dict(self.starts),
            stops=dict(self.stops),
            refusals=dict(self.refusals),
        )

    def act(self, action: Action) -> None:
        """Carry an action out, or lose it."""
        match action:
            case Start():
                self.starts[action.name] = Asked(
                    host=action.host,
                    service=action.service,
                    revision=action.revision,
                    at_s=self.now_s,
                )
                if self.draw.random() >= self.lost_share:
                    self._start(action)
            case Stop():
                self.stops[action.name] = Asked(
                    host=action.host,
                    service=action.service,
                    revision=action.revision,
                    at_s=self.now_s,
                )
                if self.draw.random() >= self.lost_share:
                    self._stop(action)
            case WriteStatus(record=record):
                self.status[record.service] = record
            case Remove(service=service):
                for found in (self.records, self.specs, self.status, self.desired):
                    found.pop(service, None)

    def _start(self, action: Start) -> None:
        found = self._processes.get(action.host)
        if found is None or action.name in found:
            return
        limit = self.memory[action.host]
        if limit and len(found) >= limit:
            del self.starts[action.name]
            refusal = Refusal(reason=f"no room for more than {limit}", at_s=self.now_s)
            self.refusals[action.service, action.host] = refusal
            return
        is_broken = action.revision in self.broken
        found[action.name] = _Process(
            state=ReplicaState(
                name=action.name,
                service=action.service,
                revision=action.revision,
                phase=ReplicaPhase.STARTING,
                fingerprint=f"print of {action.revision}",
            ),
            ready_at_s=float("inf")
            if is_broken
            else self.now_s + self.draw.random() * self.start_s,
        )

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
                if self.now_s >= process.gone_at_s:
                    del found[name]
                elif (
                    process.state.phase is ReplicaPhase.STARTING
                    and self.now_s >= process.ready_at_s
                ):
                    process.state = msgspec.structs.replace(
                        process.state, phase=ReplicaPhase.RUNNING
                    )
        self._hear()

    def _hear(self) -> None:
        for host, found in self._processes.items():
            if host in self.silent:
                continue
            beat = HostHeartbeat(
                host=host,
                beat=int(self.now_s * 2),
                name=f"node {host}",
                replicas=[process.state for process in found.values()],
            )
            self._heard[host] = Host(beat=beat, heard_s=self.now_s)
            for process in found.values():
                if self.now_s >= process.ready_at_s:
                    self._hear_engine(process.state)
        told = {
            (one.name, host.beat.host): one
            for host in self._heard.values()
            for one in host.beat.replicas
        }
        for name, asked in list(self.starts.items()):
            if (name, asked.host) in told:
                del self.starts[name]
        for name, asked in list(self.stops.items()):
            shown = told.get((name, asked.host))
            if shown is None or shown.phase is ReplicaPhase.STOPPING:
                del self.stops[name]

    def _hear_engine(self, state: ReplicaState) -> None:
        is_leaving = state.phase is ReplicaPhase.STOPPING
        beat = EngineHeartbeat(
            engine=EngineId(f"e-{state.name}"),
            service=state.service,
            beat=int(self.now_s * 2),
            state=EngineState.DRAINING if is_leaving else EngineState.READY,
            backend="fake",
            name=state.name,
        )
        self._engines[state.name] = Engine(beat=beat, heard_s=self.now_s)
