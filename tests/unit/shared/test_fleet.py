"""Rosters from heartbeats: whatever comes late, twice, out of order or not at all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared.fleet import FORGET_S, MAX_SEEN, Roster, engines, gateways
from shared.ids import EngineId, GatewayId, ServiceName
from shared.messages import ENGINE_GONE_S, EngineHeartbeat, EngineState, GatewayHeartbeat

E1, E2 = EngineId("e1"), EngineId("e2")


def beat(number: int, engine: EngineId = E1, running: int = 0) -> EngineHeartbeat:
    return EngineHeartbeat(
        engine=engine,
        service=ServiceName("s"),
        beat=number,
        state=EngineState.READY,
        backend="fake",
        running=running,
    )


def test_who_beats_is_alive_until_silent_for_too_long():
    roster = engines().hear(beat(1), now_s=10.0)

    assert roster.is_alive(E1, now_s=10.0 + ENGINE_GONE_S - 0.01)
    assert not roster.is_alive(E1, now_s=10.0 + ENGINE_GONE_S)
    assert not roster.is_alive(E2, now_s=10.0)


def test_a_newer_beat_replaces_an_older_one_and_an_older_one_changes_nothing():
    roster = engines().hear(beat(5, running=5), now_s=1.0)

    assert roster is roster.hear(beat(4, running=4), now_s=2.0)
    assert roster is roster.hear(beat(5, running=9), now_s=2.0)
    assert {E1: beat(6, running=6)} == roster.hear(beat(6, running=6), now_s=2.0).alive(now_s=2.0)


def test_a_late_beat_does_not_bring_a_dead_engine_back():
    roster = engines().hear(beat(5), now_s=0.0).forget(now_s=ENGINE_GONE_S + 1)

    late = roster.hear(beat(4), now_s=ENGINE_GONE_S + 1)

    assert {} == late.alive(now_s=ENGINE_GONE_S + 1)


def test_one_that_was_only_cut_off_comes_back_with_its_next_beat():
    roster = engines().hear(beat(5), now_s=0.0)

    assert roster.hear(beat(6), now_s=30.0).is_alive(E1, now_s=30.0)


def test_a_restart_is_another_engine():
    roster = engines().hear(beat(500, E1), now_s=0.0).hear(beat(0, E2), now_s=1.0)

    assert {E2} == roster.alive(now_s=ENGINE_GONE_S).keys()


def test_the_long_silent_are_forgotten():
    roster = engines().hear(beat(1), now_s=0.0).hear(beat(1, E2), now_s=1.0)

    assert {E2} == roster.forget(now_s=FORGET_S).seen.keys()
    assert roster is roster.forget(now_s=1.0)


def test_gateways_have_rosters_too():
    roster = gateways().hear(GatewayHeartbeat(gateway=GatewayId("g1"), beat=1), now_s=0.0)

    assert ["g1"] == list(roster.alive(now_s=1.0))


events = st.lists(
    st.tuples(st.sampled_from(["e1", "e2", "e3"]), st.integers(0, 30), st.floats(0, 5)), max_size=60
)


@given(events)
def test_the_latest_beat_of_each_wins_in_whatever_order_they_come(
    found: list[tuple[str, int, float]],
):
    roster: Roster[EngineHeartbeat] = engines()
    now_s = 0.0
    for engine, number, after_s in found:
        now_s += after_s
        roster = roster.hear(beat(number, EngineId(engine)), now_s=now_s)

    wanted: dict[str, int] = {}
    for engine, number, _ in found:
        wanted[engine] = max(number, wanted.get(engine, -1))
    assert wanted == {key: one.beat.beat for key, one in roster.seen.items()}


@given(events)
def test_the_living_are_exactly_those_heard_anew_within_the_time(
    found: list[tuple[str, int, float]],
):
    roster: Roster[EngineHeartbeat] = engines()
    now_s = 0.0
    heard: dict[str, tuple[int, float]] = {}
    for engine, number, after_s in found:
        now_s += after_s
        roster = roster.hear(beat(number, EngineId(engine)), now_s=now_s).forget(now_s=now_s)
        known = heard.get(engine)
        if known is None or number > known[0]:
            heard[engine] = (number, now_s)
        heard = {name: one for name, one in heard.items() if now_s - one[1] < FORGET_S}

    alive = {engine for engine, (_, at_s) in heard.items() if now_s - at_s < ENGINE_GONE_S}
    assert alive == roster.alive(now_s=now_s).keys()
    assert all(roster.is_alive(engine, now_s=now_s) for engine in alive)


def test_a_flood_of_names_is_not_heard_beyond_a_bound_and_mutes_nobody_known():
    roster = engines()
    for number in range(MAX_SEEN + 10):
        roster = roster.hear(beat(1, EngineId(f"e{number}")), now_s=0.0)
    roster = roster.hear(beat(2, EngineId("e0")), now_s=1.0)

    assert MAX_SEEN == len(roster.seen)
    assert 2 == roster.seen["e0"].beat.beat
    later = roster.forget(now_s=FORGET_S + 2.0).hear(beat(1, EngineId("new")), now_s=FORGET_S + 2.0)
    assert ["new"] == list(later.seen)
