"""The table of replicas, by values: whom a host obeys, and what may happen to a replica."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.host.replicas import (
    HEALTHY_S,
    LIFE,
    MAX_DELAY_S,
    MAX_REASON_CHARS,
    Event,
    Replicas,
    pause_s,
    shortened,
)
from services.host.room import Claim, Room
from shared.ids import EngineId, HostId, ServiceName
from shared.messages import (
    EngineHeartbeat,
    EngineState,
    ReplicaPhase,
    ReplicaState,
    StartReplica,
    StopReplica,
)
from shared.transitions import IllegalTransition

HOST = HostId("h1")
SERVICE = ServiceName("s")


def start(name: str = "s-0", *, epoch: int = 1, revision: str = "r1") -> StartReplica:
    return StartReplica(
        host=HOST, epoch=epoch, name=name, service=SERVICE, revision=revision, spec={}
    )


def stop(name: str = "s-0", *, epoch: int = 1) -> StopReplica:
    return StopReplica(host=HOST, epoch=epoch, name=name)


def beat(
    engine: str, state: EngineState = EngineState.READY, *, name: str = "s-0", reason: str = ""
) -> EngineHeartbeat:
    return EngineHeartbeat(
        engine=EngineId(engine),
        service=SERVICE,
        beat=1,
        state=state,
        backend="fake",
        name=name,
        reason=reason,
    )


def state_of(table: Replicas, name: str = "s-0") -> ReplicaState:
    replica = table.get(name)
    assert replica is not None
    return replica.state


def started(*, epoch: int = 0) -> Replicas:
    table = Replicas(Room(memory_bytes=10), epoch=epoch)
    answer, begins = table.start(start(epoch=max(1, epoch)), Claim(memory_bytes=4), now_us=1)
    assert answer.accepted
    assert begins
    return table


def serving() -> Replicas:
    table = started()
    table.on("s-0", Event.PREPARED, now_us=2)
    assert table.heard(beat("e1"), now=10.0, now_us=3)
    return table


def test_a_second_order_for_what_runs_changes_nothing_and_is_answered_as_the_first():
    table = serving()
    before = table.states

    assert (True, False) == _outcome(table.start(start(), Claim(memory_bytes=4), now_us=9))
    assert before == table.states
    assert 6 == table.room.free_memory_bytes


def _outcome(answer: tuple[object, bool]) -> tuple[bool, bool]:
    return answer[0].accepted, answer[1]  # type: ignore[attr-defined]


def test_another_revision_of_the_name_is_refused():
    answer, begins = started().start(start(revision="r2"), Claim(), now_us=2)

    assert (False, "name", False) == (answer.accepted, answer.refused, begins)


@pytest.mark.parametrize("name", ["", "../up", "a b", "a.b", "a\n"])
def test_a_name_that_is_no_file_is_refused(name):
    answer, begins = Replicas(Room()).start(start(name), Claim(), now_us=1)

    assert ("name", False) == (answer.refused, begins)


def test_what_stops_is_not_started_meanwhile():
    table = started()
    table.stop(stop(), now_us=2)

    answer, _ = table.start(start(), Claim(), now_us=3)

    assert "name" == answer.refused


def test_stopping_what_is_not_there_is_what_was_wanted():
    table = Replicas(Room())

    assert (True, False) == _outcome(table.stop(stop(), now_us=1))


def test_a_host_that_ends_starts_nothing_and_stops_all_the_same():
    table = started()
    table.is_draining = True

    answer, begins = table.start(start("s-1"), Claim(), now_us=2)

    assert ("draining", False) == (answer.refused, begins)
    assert (True, True) == _outcome(table.stop(stop(), now_us=3))


def test_no_room_is_refused_and_leaves_no_trace():
    table = started()

    answer, begins = table.start(start("s-1"), Claim(memory_bytes=7), now_us=2)

    assert ("room", False) == (answer.refused, begins)
    assert ["s-0"] == [state.name for state in table.states]
    assert table.start(start("s-1"), Claim(memory_bytes=6), now_us=3)[0].accepted


def test_an_epoch_that_is_over_is_refused_and_the_present_one_is_told():
    table = started(epoch=5)

    for answer, acts in (
        table.start(start("s-1", epoch=4), Claim(), now_us=2),
        table.stop(stop(epoch=4), now_us=2),
    ):
        assert ("epoch", 5, False) == (answer.refused, answer.epoch, acts)
    assert ReplicaPhase.PREPARING is state_of(table).phase


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["start", "stop"]),
            st.sampled_from(["s-0", "s-1"]),
            st.integers(1, 6),
            st.sampled_from(["r1", "r2"]),
        ),
        max_size=30,
    )
)
def test_whatever_comes_the_epoch_never_falls_and_old_ones_change_nothing(orders):
    table = Replicas(Room(memory_bytes=4))
    highest = 0
    for verb, name, epoch, revision in orders:
        before = table.states
        if verb == "start":
            order = start(name, epoch=epoch, revision=revision)
            answer, acts = table.start(order, Claim(memory_bytes=3), now_us=1)
        else:
            answer, acts = table.stop(stop(name, epoch=epoch), now_us=1)
        highest = max(highest, epoch)
        assert highest == answer.epoch == table.epoch
        if epoch < highest:
            assert "epoch" == answer.refused
            assert before == table.states
        assert not acts or answer.accepted
        assert len(table.states) <= 1  # there is room for one


@given(st.lists(st.sampled_from(list(Event)), max_size=30))
def test_whatever_happens_the_phase_is_one_of_the_table_and_the_rest_is_refused(events):
    table = started()
    phase = ReplicaPhase.PREPARING
    for event in events:
        try:
            phase = LIFE.next(phase, event)
        except IllegalTransition:
            with pytest.raises(IllegalTransition):
                table.on("s-0", event, now_us=2)
        else:
            table.on("s-0", event, now_us=2)
        assert phase is state_of(table).phase


def test_a_beat_of_the_life_before_does_not_make_the_next_one_serve():
    table = serving()
    table.ended("s-0", "exit code 1", now=11.0, now_us=4, draw=0.5)
    table.on("s-0", Event.AGAIN, now_us=5)
    table.on("s-0", Event.PREPARED, now_us=6)

    assert not table.heard(beat("e1"), now=12.0, now_us=7)
    assert ReplicaPhase.STARTING is state_of(table).phase
    assert table.heard(beat("e2"), now=12.0, now_us=8)
    assert (ReplicaPhase.RUNNING, 1) == (state_of(table).phase, state_of(table).restarts)


def test_only_the_engine_of_its_name_and_service_counts():
    table = started()
    table.on("s-0", Event.PREPARED, now_us=2)

    assert not table.heard(beat("e1", name="s-1"), now=1.0, now_us=3)
    assert table.heard(beat("e1", EngineState.STARTING), now=1.0, now_us=3)
    assert "load" == state_of(table).step


def test_words_of_the_engine_are_kept_for_the_reason():
    table = serving()

    table.heard(beat("e1", EngineState.FAILED, reason="out of memory"), now=1.0, now_us=3)

    replica = table.get("s-0")
    assert replica is not None
    assert "out of memory" == replica.said


def test_pauses_grow_to_their_bound_and_a_healthy_minute_forgives():
    table = started()
    pauses = []
    for turn in range(12):
        state = table.ended("s-0", "exit code 1", now=float(turn), now_us=2, draw=1.0)
        pauses.append(state.retry_s)
        table.on("s-0", Event.AGAIN, now_us=3)
    assert [0.5, 1.0, 2.0, 4.0] == pauses[:4]
    assert [MAX_DELAY_S] * 3 == pauses[-3:]
    assert 12 == state_of(table).restarts

    table.on("s-0", Event.PREPARED, now_us=4)
    table.heard(beat("e9"), now=100.0, now_us=5)
    healthy = table.ended("s-0", "exit code 1", now=100.0 + HEALTHY_S, now_us=6, draw=1.0)

    assert 0.5 == healthy.retry_s


@given(st.integers(1, 10_000), st.floats(0.0, 1.0))
def test_a_pause_is_bounded_and_spread(failures, draw):
    assert 0.0 < pause_s(failures, draw=draw) <= MAX_DELAY_S


@given(st.text(alphabet="ab \n", max_size=9000))
def test_a_reason_is_bounded(reason):
    assert len(shortened(reason)) <= MAX_REASON_CHARS


def test_a_reason_keeps_its_first_line_and_its_last_ones():
    lines = ["exit code 1", *(f"line {number} {'x' * 500}" for number in range(20)), "the end"]

    kept = shortened("\n".join(lines)).splitlines()

    assert ("exit code 1", "the end") == (kept[0], kept[-1])
    assert kept[-2].startswith("line 19 ")


def test_what_failed_gives_its_room_back_and_gets_it_again_once_it_is_mended():
    table = started()
    table.on("s-0", Event.CANNOT, now_us=2, reason="drift")
    assert 10 == table.room.free_memory_bytes
    assert (True, False) == _outcome(table.start(start(), Claim(memory_bytes=4), now_us=3))

    assert not table.mended("s-0", Claim(memory_bytes=11), now_us=4)
    assert ReplicaPhase.FAILED is state_of(table).phase
    assert table.mended("s-0", Claim(memory_bytes=4), now_us=5)
    assert (ReplicaPhase.PREPARING, 0) == (state_of(table).phase, state_of(table).restarts)
    assert 6 == table.room.free_memory_bytes


def test_what_is_gone_gives_its_room_back():
    table = started()
    table.stop(stop(), now_us=2)

    table.forget("s-0")

    assert [] == table.states
    assert 10 == table.room.free_memory_bytes
