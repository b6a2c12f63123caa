"""Between the operator and the hosts that run replicas: a host says what it runs, the operator says what it shall run.

A host obeys the highest fencing epoch it has heard of, and refuses older ones: a paused operator that wakes up late changes nothing.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from shared.ids import HostId, ServiceName
from shared.messages.parts import Count, Message, Seconds, Short, UnixMicros, Value


class ReplicaPhase(StrEnum):
    """Where a replica's process stands, as its host sees it; whether it serves is told by its engine's heartbeats."""

    PREPARING = "preparing"
    """The model is fetched or checked; `ReplicaState.step` says which."""
    STARTING = "starting"
    """Its process runs and has not served yet: imports, loading, warm-up."""
    RUNNING = "running"
    """It has served since its process began."""
    WAITING = "waiting"
    """Its process ended by itself; the next one begins after `retry_s`."""
    STOPPING = "stopping"
    """Told to stop; it drains."""
    FAILED = "failed"
    """It cannot start here before somebody changes something: drift, no such model, no memory. `reason` says what. Looked at each
    minute."""


class ReplicaState(Value, frozen=True, kw_only=True):
    """One replica on a host."""

    name: Short
    """Unique on the platform: the service's name, a dash, a number. The engine's `EngineHeartbeat.name`."""
    service: ServiceName
    revision: Short
    """What it was started from (`shared.spec.revision`)."""
    phase: ReplicaPhase
    step: Short = ""
    """What it is doing: `fetch`, `check`, `load`, `warm up`."""
    pid: Count = 0
    restarts: Count = 0
    retry_s: Seconds = 0.0
    since_us: UnixMicros = 0
    """When it came into this phase."""
    fingerprint: Short = ""
    """Of the model's files, when they were last checked."""
    metrics_port: Count = 0
    reason: str = ""


class HostHeartbeat(Message, tag="host.heartbeat.v1", frozen=True, kw_only=True):
    """A host can run replicas: each 500 ms, and on every change of a replica."""

    host: HostId
    beat: Count
    name: Short = ""
    """Of the machine."""
    driver: Literal["processes", "compose", "kubernetes"] = "processes"
    zone: Short = ""
    epoch: Count = 0
    """The highest it has obeyed."""
    memory_bytes: Count = 0
    """What replicas may take together; 0: not known."""
    free_memory_bytes: Count = 0
    """What none has been promised."""
    cpus: Count = 0
    free_cpus: Count | None = None
    """Cores that no replica has for itself; none: not told."""
    gpus: Count = 0
    free_gpus: Count = 0
    replicas: list[ReplicaState] = []
    is_draining: bool = False
    """It ends: nothing is started there any more."""


class StartReplica(Message, tag="operator.start_replica.v1", frozen=True, kw_only=True):
    """Run a replica. A second one for a replica of this name and revision that runs changes nothing and is answered as the first."""

    host: HostId
    epoch: Count
    name: Short
    service: ServiceName
    revision: Short
    spec: dict[str, object]
    """The whole `LLMService` as a document (`shared.spec.writing`); the host makes the command line from it."""
    fingerprint: Short = ""
    """What the model's files must be; empty: whatever they are is told in `ReplicaState.fingerprint`."""


class StopReplica(Message, tag="operator.stop_replica.v1", frozen=True, kw_only=True):
    """Drain a replica and end it. Where it is not there, or stops already, that is what was wanted."""

    host: HostId
    epoch: Count
    name: Short
    drain_s: Seconds = 30.0


class HostAnswer(Message, tag="host.answer.v1", frozen=True, kw_only=True):
    """Whether a host does what it was told; how far it is comes in heartbeats."""

    accepted: bool
    refused: Literal["", "epoch", "name", "room", "draining", "spec"] = ""
    """`epoch`: there is a younger operator. `name`: a replica of another revision has it. `room`: no memory, cores
    or devices are left. `spec`: not understood."""
    reason: str = ""
    epoch: Count = 0
