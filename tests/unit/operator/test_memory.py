"""What an operator remembers of hosts, engines and orders."""

from __future__ import annotations

from services.operator.fleet import ASK_AGAIN_S, Asked
from services.operator.memory import FORGET_S, Memory
from shared.ids import EngineId, HostId, ServiceName
from shared.messages import (
    EngineHeartbeat,
    EngineState,
    HostHeartbeat,
    ReplicaPhase,
    ReplicaState,
)

CHAT, H0 = ServiceName("chat"), HostId("h0")


def engine(
    name: str, *, beat: int = 1, state: EngineState = EngineState.READY, life: str = "e1"
) -> EngineHeartbeat:
    return EngineHeartbeat(
        engine=EngineId(life), service=CHAT, beat=beat, state=state, backend="fake", name=name
    )


def host(*phases: ReplicaPhase, beat: int = 1, epoch: int = 0) -> HostHeartbeat:
    replicas = [
        ReplicaState(name=f"chat-{n}", service=CHAT, revision="r1", phase=phase)
        for n, phase in enumerate(phases)
    ]
    return HostHeartbeat(host=H0, beat=beat, epoch=epoch, replicas=replicas)


def asked(revision: str = "r1") -> Asked:
    return Asked(host=H0, service=CHAT, revision=revision, at_s=0.0)


def test_a_beat_tells_something_new_when_a_replica_changed_and_old_ones_tell_nothing():
    memory = Memory()
    assert memory.heard_host(host(ReplicaPhase.STARTING), now=0)
    assert not memory.heard_host(host(ReplicaPhase.STARTING, beat=2), now=1)
    assert memory.heard_host(host(ReplicaPhase.RUNNING, beat=3, epoch=7), now=2)
    assert not memory.heard_host(host(ReplicaPhase.STARTING, beat=2), now=3)
    assert memory.hosts[H0].heard_s == 2
    assert memory.highest_epoch == 7


def test_orders_are_kept_until_their_host_shows_them():
    memory = Memory()
    memory.starts = {"chat-0": asked(), "chat-1": asked("r2")}
    memory.stops = {"chat-2": asked(), "chat-3": asked()}
    states = [ReplicaPhase.PREPARING, ReplicaPhase.RUNNING, ReplicaPhase.RUNNING]
    memory.heard_host(host(*states), now=1)
    assert set(memory.starts) == {"chat-1"}
    assert set(memory.stops) == {"chat-2"}
    memory.prune(now=ASK_AGAIN_S + 1, listens_since_s=0)
    assert memory.starts == memory.stops == {}


def test_an_engine_counts_from_its_newest_beat():
    memory = Memory()
    assert memory.heard_engine(engine("chat-0", beat=2), now=0)
    assert not memory.heard_engine(engine("chat-0", beat=1, state=EngineState.DRAINING), now=0.1)
    assert memory.heard_engine(engine("chat-0", beat=3, state=EngineState.DRAINING), now=0.2)


def test_one_of_a_name_that_leaves_does_not_hide_the_one_that_serves():
    memory = Memory()
    memory.heard_engine(engine("chat-0", life="stays"), now=0)
    leaves = engine("chat-0", life="leaves", state=EngineState.DRAINING)
    assert not memory.heard_engine(leaves, now=0.5)
    assert memory.engines["chat-0"].beat.engine == "stays"
    assert memory.heard_engine(leaves, now=5)


def test_hosts_are_forgotten_for_silence_that_was_listened_to():
    memory = Memory()
    memory.heard_host(host(), now=0)
    memory.prune(now=10 * FORGET_S, listens_since_s=10 * FORGET_S - 1)
    assert H0 in memory.hosts
    memory.prune(now=11 * FORGET_S, listens_since_s=10 * FORGET_S - 1)
    assert memory.hosts == {}
