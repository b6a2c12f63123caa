"""The operator's decisions on a fleet of values: it converges, stays within its bounds at every step, and leaves a finished world alone."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.operator.fleet import Remove, Start, Stop, WriteStatus
from services.operator.reconcile import reconcile
from shared.ids import HostId, ServiceName
from shared.messages import ReplicaPhase, ServicePhase
from shared.spec.model import EngineSpec, LLMService, ResourceLimits, ScalingPolicy
from tests.support.fleet_model import FleetModel
from tests.support.specs import service

CHAT = ServiceName("chat")


def chat(least: int = 2, *, settings: str = "1", **scaling: int) -> LLMService:
    """A service of the fake engine; another `settings` is another revision."""
    policy = ScalingPolicy(min_replicas=least, max_replicas=9, **scaling)
    return service(
        scaling=policy, engine=EngineSpec(backend="fake", settings={"fake-seed": settings})
    )


class Watched:
    """A fleet whose bounds are checked at every step."""

    def __init__(self, fleet: FleetModel) -> None:
        self.fleet = fleet
        self.least_serving = 10**6
        self.most = 0

    def step(self) -> int:
        """Run one pass and let time pass; return the number of orders."""
        fleet = self.fleet
        actions = reconcile(fleet.world()) if fleet.acts else []
        for action in actions:
            fleet.act(action)
        processes = fleet.processes(CHAT)
        assert len({one.name for one in processes}) == len(processes)
        self.most = max(self.most, len(processes))
        self.least_serving = min(self.least_serving, fleet.serving(CHAT))
        fleet.tick()
        return sum(isinstance(action, Start | Stop) for action in actions)

    def settle(self, *, steps: int = 200) -> None:
        """Go on until nothing was ordered for a while."""
        quiet = 0
        for _ in range(steps):
            quiet = 0 if self.step() else quiet + 1
            if quiet >= 25:
                return
        raise AssertionError("it does not come to rest")

    def begin(self) -> None:
        """Watch the bounds from now on."""
        self.least_serving, self.most = 10**6, 0


def running(spec: LLMService, *, seed: int = 1, hosts: int = 2) -> Watched:
    watched = Watched(FleetModel(seed, hosts=hosts))
    watched.fleet.declare(spec)
    watched.settle()
    assert watched.fleet.serving(CHAT) == spec.scaling.min_replicas
    watched.begin()
    return watched


@given(
    seed=st.integers(0, 1 << 30),
    least=st.integers(1, 4),
    surge=st.integers(0, 2),
    unavailable=st.integers(0, 2),
    lost=st.sampled_from([0.0, 0.3]),
)
def test_a_change_goes_through_within_its_bounds(seed, least, surge, unavailable, lost):
    if surge == unavailable == 0:
        surge = 1
    watched = running(chat(least), seed=seed)
    fleet = watched.fleet
    fleet.lost_share = lost
    new = chat(least, settings="2", max_surge=surge, max_unavailable=unavailable)
    fleet.declare(new)
    watched.settle(steps=600)
    assert {one.revision for one in fleet.processes(CHAT)} == {fleet.records[CHAT].revision}
    assert fleet.serving(CHAT) == least
    assert watched.most <= least + surge
    assert watched.least_serving >= least - unavailable
    assert fleet.status[CHAT].is_settled


@given(st.integers(0, 1 << 30), st.lists(st.integers(0, 6), min_size=1, max_size=4))
def test_the_number_of_replicas_follows_what_is_desired(seed, counts):
    watched = running(chat(1), seed=seed)
    fleet = watched.fleet
    for count in counts:
        fleet.desired[CHAT] = count
        before = fleet.serving(CHAT)
        watched.begin()
        watched.settle()
        wanted = max(1, count)
        assert fleet.serving(CHAT) == wanted == len(fleet.processes(CHAT))
        assert watched.least_serving >= min(before, wanted)
        assert watched.most <= max(before, wanted)
    assert {one.name for one in fleet.processes(CHAT)} == {
        f"chat-{n}" for n in range(fleet.serving(CHAT))
    }


@given(st.integers(0, 1 << 30), st.integers(0, 12), st.sampled_from([0.0, 0.3]))
def test_a_restarted_operator_adopts_what_runs(seed, after, lost):
    watched = Watched(FleetModel(seed))
    fleet = watched.fleet
    fleet.lost_share = lost
    fleet.declare(chat(3))
    for _ in range(after):
        watched.step()
    fleet.forget()
    watched.settle(steps=400)
    assert len(fleet.processes(CHAT)) == 3 == fleet.serving(CHAT)
    # An order that was lost with the operator's memory of it, and one of the new operator, share their names.
    assert watched.most <= 3


@given(st.integers(0, 1 << 30))
def test_replicas_of_a_lost_host_are_replaced_and_not_doubled(seed):
    watched = running(chat(3), seed=seed, hosts=3)
    fleet = watched.fleet
    lost = next(host for host, found in fleet._processes.items() if found)
    fleet.kill_host(lost)
    watched.settle()
    assert fleet.serving(CHAT) == 3 == len(fleet.processes(CHAT))


def test_a_host_that_is_only_silent_keeps_its_replicas():
    watched = running(chat(2))
    fleet = watched.fleet
    fleet.silent = {HostId("h0")}
    orders = sum(watched.step() for _ in range(15))
    assert orders == 0
    fleet.silent = set()
    watched.settle()
    assert len(fleet.processes(CHAT)) == 2


def test_a_host_that_comes_back_in_a_new_life_gets_new_replicas_soon():
    watched = running(chat(2), hosts=1)
    fleet = watched.fleet
    fleet.kill_host(HostId("h0"))
    fleet.add_host(HostId("h0b"))
    heard = fleet.known.hosts[HostId("h0")]
    renamed = msgspec.structs.replace(heard.beat, name="node h0b")
    fleet.known.hosts[HostId("h0")] = msgspec.structs.replace(heard, beat=renamed)
    steps = 0
    while fleet.serving(CHAT) < 2:
        watched.step()
        steps += 1
    assert steps < 15  # 7 s, where a lost host takes 10


def test_a_deleted_service_drains_and_is_forgotten():
    watched = running(chat(2))
    fleet = watched.fleet
    fleet.delete(CHAT)
    watched.step()
    assert fleet.status[CHAT].phase is ServicePhase.DRAINING
    watched.settle()
    assert not fleet.processes(CHAT)
    assert CHAT not in fleet.records


def test_a_change_that_never_serves_leaves_the_old_ones_alone_and_says_so():
    watched = running(chat(2))
    fleet = watched.fleet
    new = chat(2, settings="broken")
    fleet.declare(new)
    fleet.broken.add(fleet.records[CHAT].revision)
    for _ in range(200):
        watched.step()
    assert watched.least_serving == 2
    assert watched.most == 3
    status = fleet.status[CHAT]
    assert status.phase is ServicePhase.RUNNING
    assert not status.is_settled
    assert status.reason == "0 of 2 serve, 2 of an older revision are left"
    fleet.declare(chat(2, settings="3"))
    watched.settle()
    assert fleet.status[CHAT].is_settled


def test_without_room_for_a_surge_the_old_ones_stay_and_the_reason_is_told():
    watched = running(chat(2))
    fleet = watched.fleet
    for host in fleet.memory:
        fleet.memory[host] = 1
    fleet.declare(chat(2, settings="2"))
    for _ in range(60):
        watched.step()
    assert watched.least_serving == 2
    assert "no room for more than 1" in fleet.status[CHAT].reason
    fleet.declare(chat(2, settings="2", max_unavailable=1))
    watched.settle()
    assert fleet.status[CHAT].is_settled
    assert watched.least_serving == 1


def test_where_no_host_has_what_a_replica_needs_the_status_says_what_lacks():
    fleet = FleetModel(1)
    fleet.declare(service(resources=ResourceLimits(gpu=1)))
    Watched(fleet).settle()
    status = fleet.status[CHAT]
    assert status.phase is ServicePhase.PENDING
    assert status.reason.endswith("has 0 GPUs free of 1 that a replica needs")


def test_a_zone_is_kept():
    fleet = FleetModel(1)
    fleet.declare(service(zone="b"))
    Watched(fleet).settle()
    assert fleet.status[CHAT].reason == "no host of zone 'b' is heard"


def test_the_first_fingerprint_binds_a_revision():
    watched = running(chat(1))
    fleet = watched.fleet
    mark = f"print of {fleet.records[CHAT].revision}"
    assert list(fleet.status[CHAT].fingerprints.values()) == [mark]
    fleet.desired[CHAT] = 2
    (start,) = [one for one in reconcile(fleet.world()) if isinstance(one, Start)]
    assert start.fingerprint == mark


@pytest.mark.parametrize("phase", [ReplicaPhase.FAILED, ReplicaPhase.WAITING])
def test_a_service_of_which_nothing_can_serve_has_failed_and_says_why(phase):
    watched = running(chat(1))
    fleet = watched.fleet
    (process,) = [one for found in fleet._processes.values() for one in found.values()]
    process.state = msgspec.structs.replace(
        process.state, phase=phase, restarts=10, reason="exit code 1: no such file"
    )
    process.ready_at_s = float("inf")
    for _ in range(30):
        assert watched.step() == 0
    status = fleet.status[CHAT]
    assert status.phase is ServicePhase.FAILED
    assert status.reason == "chat-0 on node h0, ended 10 times: exit code 1: no such file"


def test_a_change_of_a_failed_service_is_under_way_and_not_failed():
    watched = running(chat(1))
    fleet = watched.fleet
    (process,) = [one for found in fleet._processes.values() for one in found.values()]
    process.state = msgspec.structs.replace(
        process.state, phase=ReplicaPhase.WAITING, restarts=10, reason="exit code 1"
    )
    process.ready_at_s = float("inf")
    watched.settle()
    assert fleet.status[CHAT].phase is ServicePhase.FAILED
    fleet.declare(chat(1, settings="2"))
    watched.step()
    assert fleet.status[CHAT].generation == 2
    assert fleet.status[CHAT].phase is not ServicePhase.FAILED
    watched.settle()
    assert fleet.status[CHAT].is_settled


def test_a_finished_world_is_left_alone_and_its_status_is_not_written_again():
    watched = running(chat(2))
    assert [reconcile(watched.fleet.world()) for _ in range(3)] == [[], [], []]
    watched.fleet.tick()
    assert reconcile(watched.fleet.world()) == []


def test_what_nobody_declared_is_stopped():
    watched = running(chat(2))
    del watched.fleet.records[CHAT]
    actions = reconcile(watched.fleet.world())
    assert [type(action) for action in actions] == [Stop, Stop]


def test_actions_of_a_new_service_are_its_starts_and_its_status():
    fleet = FleetModel(1)
    fleet.tick()
    fleet.declare(chat(2))
    kinds = [type(action) for action in reconcile(fleet.world())]
    assert kinds == [Start, Start, WriteStatus]
    assert Remove not in kinds
