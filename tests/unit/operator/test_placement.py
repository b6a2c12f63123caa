"""Where replicas go, and what is said where none can."""

from __future__ import annotations

import pytest

from services.operator.fleet import Asked, Host, Refusal, Start, World
from services.operator.placement import Placing
from services.operator.reconcile import reconcile
from shared.ids import HostId
from shared.messages import HostHeartbeat
from shared.spec.model import GIB, EngineSpec, LLMService, ResourceLimits, ScalingPolicy
from tests.support.fleet_model import FleetModel
from tests.support.specs import service

H0, H1 = HostId("h0"), HostId("h1")


def heavy(**resources: float) -> LLMService:
    """A service of the fake engine that takes something."""
    return service(resources=ResourceLimits(**resources), engine=EngineSpec(backend="fake"))


def beat(host: HostId, *, free: int = 8, **more: object) -> HostHeartbeat:
    """A host with so many GiB free of eight."""
    return HostHeartbeat(
        host=host,
        beat=1,
        name=f"node {host}",
        memory_bytes=8 * GIB,
        free_memory_bytes=free * GIB,
        **more,
    )


def world(*beats: HostHeartbeat, heard_s: float = 100.0, **more: object) -> World:
    hosts = {one.host: Host(beat=one, heard_s=heard_s) for one in beats}
    return World(now_s=100.0, unix_us=1, epoch=1, services={}, hosts=hosts, **more)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (heavy(memory_bytes=9 * GIB), "node h0 has 8.0 GiB free of 9.0 GiB that a replica needs"),
        (heavy(cpu=2.5), "node h0 has 2 cores free of 3 that a replica needs"),
        (heavy(gpu=2), "node h0 has 1 GPUs free of 2 that a replica needs"),
    ],
)
def test_what_a_host_lacks_is_told_in_figures(spec, reason):
    placing = Placing(world(beat(H0, cpus=4, free_cpus=2, gpus=2, free_gpus=1)), {})
    assert placing.place(spec) == (None, reason)


def test_what_was_given_in_this_pass_is_gone():
    placing = Placing(world(beat(H0), beat(H1)), {})
    spec = heavy(memory_bytes=3 * GIB)
    places = [placing.place(spec)[0] for _ in range(5)]
    assert sorted(filter(None, places)) == [H0, H0, H1, H1]
    assert places[4] is None


def test_what_was_ordered_and_is_not_told_yet_is_gone():
    fleet = FleetModel(1)
    spec = heavy(memory_bytes=5 * GIB)
    fleet.declare(spec)
    asked = Asked(host=H0, service=spec.name, revision="r", at_s=100.0)
    seen = world(beat(H0), starts={"chat-0": asked})
    placing = Placing(seen, {})
    assert placing.place(spec)[0] == H0
    known = World(
        now_s=100.0,
        unix_us=1,
        epoch=1,
        services=fleet.world().services,
        hosts=seen.hosts,
        starts=seen.starts,
    )
    assert Placing(known, {}).place(spec)[0] is None


def test_cores_that_a_host_does_not_tell_are_left_to_it():
    assert Placing(world(beat(H0)), {}).place(heavy(cpu=64))[0] == H0


def test_a_host_that_drains_is_silent_or_refused_lately_gets_nothing():
    spec = heavy()
    assert Placing(world(beat(H0, is_draining=True)), {}).place(spec)[0] is None
    assert Placing(world(beat(H0), heard_s=98.0), {}).place(spec)[0] is None
    refused = {(spec.name, H0): Refusal(reason="all ports are given away", at_s=95.0)}
    assert Placing(world(beat(H0), beat(H1), refusals=refused), {}).place(spec)[0] == H1
    found = Placing(world(beat(H0), refusals=refused), {}).place(spec)
    assert found == (None, "node h0: all ports are given away")


def test_replicas_are_spread_over_hosts():
    fleet = FleetModel(1, hosts=3)
    fleet.tick()
    fleet.declare(service(scaling=ScalingPolicy(min_replicas=6)))
    hosts = [one.host for one in reconcile(fleet.world()) if isinstance(one, Start)]
    assert sorted(hosts) == sorted(2 * fleet.hosts())
