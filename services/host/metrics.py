"""What a host counts, read by Prometheus. Labels are bounded: phases, and the replicas that there are."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from services.host.replicas import Replicas
from shared.messages import ReplicaPhase


class HostCollector(Collector):
    """Makes the page when it is asked for."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    @override
    def collect(self) -> Iterator[Metric]:
        replicas, room = self._replicas, self._replicas.room
        states = replicas.states
        phases = GaugeMetricFamily("headrace_host_replicas", "Replicas here.", labels=("phase",))
        for phase in ReplicaPhase:
            phases.add_metric((phase,), sum(state.phase is phase for state in states))
        yield phases
        restarts = CounterMetricFamily(
            "headrace_host_replica_restarts",
            "Lives of a replica that followed one which ended by itself.",
            labels=("replica",),
        )
        for state in states:
            restarts.add_metric((state.name,), state.restarts)
        yield restarts
        for name, text, value in (
            ("memory_bytes", "What replicas may take together.", room.memory_bytes),
            ("free_memory_bytes", "What none was promised.", room.free_memory_bytes),
            ("cores", "Cores of this host.", len(room.cores)),
            ("free_cores", "Cores that no replica has for itself.", len(room.free_cores)),
            ("gpus", "GPUs of this host.", len(room.gpus)),
            ("free_gpus", "GPUs that no replica has.", len(room.free_gpus)),
            ("epoch", "The highest operator's epoch obeyed.", replicas.epoch),
        ):
            yield GaugeMetricFamily(f"headrace_host_{name}", text, value=value)
