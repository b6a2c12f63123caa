"""What a pass of the operator costs: 500 services with two replicas each on 50 hosts, at rest and with everything to be started."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time

from services.operator.fleet import Engine, Host, Wanted, World, WriteStatus
from services.operator.reconcile import reconcile
from shared.ids import EngineId, HostId, ServiceName
from shared.messages import (
    EngineHeartbeat,
    EngineState,
    HostHeartbeat,
    ReplicaPhase,
    ReplicaState,
    ServiceRecord,
)
from shared.spec.model import EngineSpec, LLMService, Metadata, ModelRef, ScalingPolicy
from shared.spec.revision import revision
from shared.spec.writing import to_document


def world(services: int, hosts: int, *, runs: bool) -> World:
    """Return a fleet in which all replicas run, or none does."""
    wanted: dict[ServiceName, Wanted] = {}
    states: list[ReplicaState] = []
    for number in range(services):
        spec = LLMService(
            metadata=Metadata(name=ServiceName(f"s{number}")),
            model=ModelRef(name="m"),
            scaling=ScalingPolicy(min_replicas=2),
            engine=EngineSpec(backend="fake"),
        )
        mark = revision(spec)
        record = ServiceRecord(
            service=spec.name, spec=to_document(spec), generation=1, revision=mark
        )
        wanted[spec.name] = Wanted(record=record, spec=spec)
        states += [
            ReplicaState(
                name=f"{spec.name}-{n}",
                service=spec.name,
                revision=mark,
                phase=ReplicaPhase.RUNNING,
            )
            for n in range(2)
        ]
    found = states if runs else []
    beats = {
        HostId(f"h{n}"): Host(
            beat=HostHeartbeat(
                host=HostId(f"h{n}"), beat=1, name=f"n{n}", replicas=found[n::hosts]
            ),
            heard_s=100.0,
        )
        for n in range(hosts)
    }
    engines = {
        state.name: Engine(
            beat=EngineHeartbeat(
                engine=EngineId(state.name),
                service=state.service,
                beat=1,
                state=EngineState.READY,
                backend="fake",
                name=state.name,
            ),
            heard_s=100.0,
        )
        for state in found
    }
    return World(now_s=100.0, unix_us=1, epoch=1, services=wanted, hosts=beats, engines=engines)


def measure(found: World, *, rounds: int) -> dict[str, float]:
    """Return CPU seconds of a pass."""
    took: list[float] = []
    actions = 0
    for _ in range(rounds):
        begin_s = time.process_time()
        actions = len(reconcile(found))
        took.append(time.process_time() - begin_s)
    return {"actions": actions, "median_s": statistics.median(took), "longest_s": max(took)}


def settled(found: World) -> World:
    """Return a world whose states have been written, so that nothing is left to do."""
    states = {
        action.record.service: action.record
        for action in reconcile(found)
        if isinstance(action, WriteStatus)
    }
    services = {
        name: Wanted(record=one.record, spec=one.spec, status=states.get(name))
        for name, one in found.services.items()
    }
    return World(
        now_s=found.now_s,
        unix_us=found.unix_us,
        epoch=found.epoch,
        services=services,
        hosts=found.hosts,
        engines=found.engines,
    )


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--services", type=int, default=500)
    options.add_argument("--hosts", type=int, default=50)
    options.add_argument("--rounds", type=int, default=7)
    chosen = options.parse_args()
    cases = {
        "at rest": settled(world(chosen.services, chosen.hosts, runs=True)),
        "all to be started": world(chosen.services, chosen.hosts, runs=False),
    }
    figures = {name: measure(found, rounds=chosen.rounds) for name, found in cases.items()}
    machine = {"cores": os.cpu_count(), "python": platform.python_version()}
    print(json.dumps({"machine": machine, "services": chosen.services, "figures": figures}))
    for name, found in figures.items():
        print(
            f"{name:<20}{found['actions']:>6.0f} actions  median {found['median_s'] * 1e3:7.1f} ms CPU"
            f"  longest {found['longest_s'] * 1e3:7.1f} ms"
        )


if __name__ == "__main__":
    main()
