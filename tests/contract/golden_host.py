"""Samples of what hosts and the operator say to each other; see `golden_samples`."""

from __future__ import annotations

from shared.ids import HostId, ServiceName
from shared.messages import (
    DesiredRecord,
    HostAnswer,
    HostHeartbeat,
    LeaseRecord,
    Message,
    OperatorHeartbeat,
    RecordChanged,
    ReplicaPhase,
    ReplicaState,
    ReplicaStatus,
    ServicePhase,
    ServiceRecord,
    StartReplica,
    StatusRecord,
    StopReplica,
)

HOST = HostId("h0123456789abcdef")
SERVICE = ServiceName("contracts")
SPEC: dict[str, object] = {
    "apiVersion": "llmplatform.io/v1",
    "kind": "LLMService",
    "metadata": {"name": "contracts"},
    "spec": {"modelRef": {"name": "smollm2"}, "scalingPolicy": {"minReplicas": 2}},
}
RUNNING = ReplicaState(
    name="contracts-0",
    service=SERVICE,
    revision="5f0c1d2e",
    phase=ReplicaPhase.RUNNING,
    pid=4711,
    restarts=1,
    since_us=1_790_000_000_000_000,
    fingerprint="a" * 32,
    metrics_port=40_123,
)
WAITING = ReplicaState(
    name="contracts-1",
    service=SERVICE,
    revision="5f0c1d2e",
    phase=ReplicaPhase.WAITING,
    step="load",
    restarts=3,
    retry_s=4.0,
    since_us=1_790_000_000_000_001,
    reason="exit code 1: no memory",
)
STATUS = ReplicaStatus(
    name="contracts-1",
    host="node-1",
    revision="5f0c1d2e",
    phase=ReplicaPhase.STARTING,
    step="load",
    restarts=2,
    reason="exit code 1: no memory",
)
HOST_SAMPLES: dict[str, Message] = {
    "host_heartbeat": HostHeartbeat(
        host=HOST,
        beat=7,
        name="node-1",
        zone="a",
        epoch=3,
        memory_bytes=24 << 30,
        free_memory_bytes=12 << 30,
        cpus=8,
        gpus=2,
        free_gpus=1,
        replicas=[RUNNING, WAITING],
    ),
    "host_heartbeat_least": HostHeartbeat(host=HOST, beat=1),
    "host_heartbeat_cores": HostHeartbeat(host=HOST, beat=2, cpus=8, free_cpus=5),
    "host_answer": HostAnswer(accepted=True, epoch=3),
    "host_answer_refused": HostAnswer(
        accepted=False, refused="epoch", reason="there is a younger operator", epoch=4
    ),
    "start_replica": StartReplica(
        host=HOST,
        epoch=3,
        name="contracts-1",
        service=SERVICE,
        revision="5f0c1d2e",
        spec=SPEC,
        fingerprint="a" * 32,
    ),
    "stop_replica": StopReplica(host=HOST, epoch=3, name="contracts-1", drain_s=12.5),
    "operator_heartbeat": OperatorHeartbeat(
        operator="o0123456789abcdef",
        beat=9,
        leads=True,
        epoch=3,
        services=2,
        replicas=4,
        url="http://127.0.0.1:9200/metrics",
    ),
    "record_changed": RecordChanged(bucket="hr-services", key="contracts", revision=12),
    "service_record": ServiceRecord(
        service=SERVICE,
        spec=SPEC,
        generation=3,
        revision="5f0c1d2e",
        fingerprint="a" * 32,
        source="contracts.yaml",
        by="ops",
        applied_us=1_790_000_000_000_000,
    ),
    "service_record_deleted": ServiceRecord(
        service=SERVICE, spec=SPEC, generation=4, revision="5f0c1d2e", deleted=True
    ),
    "desired_record": DesiredRecord(
        service=SERVICE, replicas=3, by="console", reason="load test", set_us=1_790_000_000_000_000
    ),
    "status_record": StatusRecord(
        service=SERVICE,
        phase=ServicePhase.DEGRADED,
        reason="1 of 2 replicas serve",
        generation=3,
        revision="5f0c1d2e",
        wanted=2,
        ready=1,
        updated=1,
        replicas=[STATUS],
        fingerprints={"5f0c1d2e": "a" * 32},
        since_us=1_790_000_000_000_000,
        epoch=3,
    ),
    "lease_record": LeaseRecord(
        role="operator", holder="o0123456789abcdef", epoch=3, ttl_s=6.0, renewals=40
    ),
}
