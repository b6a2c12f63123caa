"""What the platform remembers: one record a service (or a lease) in a bucket of JetStream's key-value store, written as JSON.

A record is written by comparing with the revision that was read (`shared.records`); who watches re-reads. JSON, so that people can look:
`nats kv get hr-services NAME`.
"""

from __future__ import annotations

from enum import StrEnum

from shared.ids import ServiceName
from shared.messages.host import ReplicaPhase
from shared.messages.parts import Count, Message, Seconds, Short, UnixMicros, Value


class ServiceRecord(Message, tag="console.service.v1", frozen=True, kw_only=True):
    """What a service shall be."""

    service: ServiceName
    spec: dict[str, object]
    """The `LLMService` as a document (`shared.spec.writing`)."""
    generation: Count
    """Counts changes of `spec`, from 1."""
    revision: Short
    """Of what its replicas are made of (`shared.spec.revision`): two specs with one revision need no new replica."""
    fingerprint: Short = ""
    """Of the model's files at apply, where the console could read them."""
    source: str = ""
    """File that it came from, for people."""
    by: Short = ""
    """Who applied it."""
    applied_us: UnixMicros = 0
    deleted: bool = False
    """It shall end: replicas drain, then the operator removes the record."""


class DesiredRecord(Message, tag="console.desired.v1", frozen=True, kw_only=True):
    """How many replicas a service shall have; the spec's bounds hold all the same."""

    service: ServiceName
    replicas: Count
    by: Short
    """`console` or `scaler`."""
    reason: str = ""
    set_us: UnixMicros = 0


class ServicePhase(StrEnum):
    """Where a service stands."""

    PENDING = "Pending"
    """Nothing runs yet: no host, no room."""
    INITIALIZING = "Initializing"
    """Replicas start, and none serves yet."""
    RUNNING = "Running"
    """As many serve as are wanted; where a change is under way, `StatusRecord.reason` says how far it is."""
    DEGRADED = "Degraded"
    """Fewer serve than are wanted."""
    DRAINING = "Draining"
    """It was deleted; replicas finish what they have."""
    FAILED = "Failed"
    """None serves and none will without a change."""


class ReplicaStatus(Value, frozen=True, kw_only=True):
    """One replica as the operator sees it."""

    name: Short
    host: Short
    """Name of its host."""
    revision: Short
    phase: ReplicaPhase
    step: Short = ""
    serves: bool = False
    restarts: Count = 0
    reason: str = ""


class StatusRecord(Message, tag="operator.status.v1", frozen=True, kw_only=True):
    """What a service is."""

    service: ServiceName
    phase: ServicePhase
    reason: str = ""
    generation: Count = 0
    """The newest that was seen."""
    revision: Short = ""
    wanted: Count = 0
    ready: Count = 0
    """Replicas that serve, of any revision."""
    updated: Count = 0
    """Replicas that serve, of the present one."""
    replicas: list[ReplicaStatus] = []
    fingerprints: dict[str, str] = {}
    """Of each revision that runs: what its model's files are."""
    since_us: UnixMicros = 0
    """When it came into this phase."""
    epoch: Count = 0
    """Of the operator that wrote it."""

    @property
    def is_settled(self) -> bool:
        """Whether the service is as it shall be, and nothing is under way."""
        return self.phase is ServicePhase.RUNNING and self.updated >= self.wanted == len(
            self.replicas
        )


class LeaseRecord(Message, tag="operator.lease.v1", frozen=True, kw_only=True):
    """Who acts, of several that could. `epoch` fences: what a former holder still does carries a lower one, and is refused."""

    role: Short
    holder: Short
    epoch: Count
    """Counts holders: each one that takes it over has a higher one."""
    ttl_s: Seconds
    """A lease that was not renewed for so long by the reader's own clock may be taken."""
    renewals: Count = 0
    """Counts up while it is held."""


class RecordChanged(Message, tag="operator.record_changed.v1", frozen=True, kw_only=True):
    """A record was written or deleted. Only a hint: who watches reads it again."""

    bucket: Short
    key: Short
    revision: Count


class OperatorHeartbeat(Message, tag="operator.heartbeat.v1", frozen=True, kw_only=True):
    """An operator is alive: each 500 ms. Core, not a record."""

    operator: Short
    beat: Count
    leads: bool = False
    epoch: Count = 0
    services: Count = 0
    replicas: Count = 0
    url: str = ""
    """Its metrics page."""
    reason: str = ""
    """Why it does nothing, or what it cannot do."""
