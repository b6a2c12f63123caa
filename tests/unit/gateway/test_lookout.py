"""The lookout knows who is alive, gives up engines once, and blames nobody for its own absence."""

from __future__ import annotations

import msgspec

from services.gateway.lookout import HUNG_MEMORY_S, MAX_SERVICES, Lookout
from services.gateway.routing import Router, RoutingSettings
from shared.fleet import RETURN_S
from shared.ids import EngineId, GatewayId, ServiceName
from shared.messages import ENGINE_GONE_S, EngineHeartbeat, EngineState, GatewayHeartbeat

E = EngineId("e1")
OWN = GatewayId("g1")


def lookout() -> Lookout:
    settings = RoutingSettings()
    return Lookout(Router(settings, seed=1), settings, own=OWN, over_commit=1.0)


def beat(number: int, *, engine=E, state=EngineState.READY, **fields) -> EngineHeartbeat:
    return EngineHeartbeat(
        engine=engine,
        service=ServiceName("m"),
        beat=number,
        state=state,
        backend="fake",
        max_model_len=100,
        max_streams=8,
        **fields,
    )


def hear(made: Lookout, *beats: EngineHeartbeat, now: float = 0.0):
    return [made.engine_beat(one, now=now, unix_s=77) for one in beats][-1]


def wait(made: Lookout, start_s: float, end_s: float, *, is_listening: bool = True):
    """Tick each 100 ms; return who was lost."""
    return [
        loss
        for tick in range(round(start_s * 10), round(end_s * 10) + 1)
        for loss in made.tick(tick / 10, is_listening=is_listening)
    ]


def test_an_engine_that_beats_is_ready_and_its_service_present():
    made = lookout()

    hear(made, beat(1))

    assert 1 == made.ready()
    assert [("m", 77, 100)] == [
        (info.name, info.first_seen_unix_s, info.max_model_len) for info in made.present()
    ]
    assert 8 == made.limit("m")


def test_silence_is_death_and_told_once():
    made = lookout()
    hear(made, beat(1))

    assert [] == wait(made, 0.0, 1.8)
    (loss,) = wait(made, 1.9, 2.1)

    assert (E, "m", "is gone") == (loss.engine, loss.service, loss.why)
    assert [] == wait(made, 2.2, 3.0)
    assert (0, 0, []) == (made.ready(), made.limit("m"), made.present())
    assert "m" in made.services


def test_tokens_are_a_sign_of_life():
    made = lookout()
    hear(made, beat(1))
    wait(made, 0.0, 1.5)

    made.engine_talked(E)

    assert [] == wait(made, 1.6, 3.2)
    assert [E] == [loss.engine for loss in wait(made, 3.3, 3.6)]


def test_late_tokens_do_not_raise_the_dead():
    made = lookout()
    hear(made, beat(1))
    wait(made, 0.0, 3.0)

    made.engine_talked(E)

    assert 0 == made.ready()
    assert [] == wait(made, 3.1, 6.0)


def test_an_old_beat_does_not_raise_the_dead():
    made = lookout()
    hear(made, beat(5))
    wait(made, 0.0, 3.0)

    hear(made, beat(4), now=3.1)

    assert 0 == made.ready()


def test_a_dead_engine_that_was_only_away_comes_back():
    made = lookout()
    hear(made, beat(5))
    wait(made, 0.0, 3.0)

    hear(made, beat(6), now=3.1)

    assert 1 == made.ready()


def test_own_deafness_kills_nobody_and_others_get_time_to_come_back():
    made = lookout()
    hear(made, beat(1))

    assert [] == wait(made, 0.0, 30.0, is_listening=False)
    assert [] == wait(made, 30.1, 30.0 + RETURN_S + ENGINE_GONE_S - 0.2)
    assert 1 == made.ready()
    assert 1 == len(wait(made, 34.8, 35.2))


def test_an_own_standstill_kills_nobody():
    made = lookout()
    hear(made, beat(1))
    wait(made, 0.0, 1.0)

    assert [] == wait(made, 60.0, 60.2)


def test_a_failed_engine_is_given_up_once():
    made = lookout()
    hear(made, beat(1))

    loss = hear(made, beat(2, state=EngineState.FAILED))

    assert loss is not None
    assert "failed" == loss.why
    assert hear(made, beat(3, state=EngineState.FAILED)) is None


def test_a_hung_engine_stays_suspect_until_it_steps():
    made = lookout()
    hear(made, beat(1, step=40))

    loss = hear(made, beat(2, step=40, step_age_s=31.0), now=1.0)
    hear(made, beat(3, step=40), now=2.0)
    suspect = made.ready()
    hear(made, beat(4, step=41), now=3.0)

    assert loss is not None
    assert "hangs" == loss.why
    assert (0, 1) == (suspect, made.ready())


def test_an_engine_that_knows_its_steps_hangs_earlier_where_another_can_go_on():
    made = lookout()
    hear(made, beat(1, step=40))
    hear(made, beat(1, engine=EngineId("e2"), step=7))

    early = hear(made, beat(2, step=40, step_age_s=1.6, step_bound_s=1.5))

    assert early is not None
    assert "hangs" == early.why
    assert 1 == made.ready()


def test_the_only_engine_gets_all_the_time_there_is():
    made = lookout()
    hear(made, beat(1, step=40))

    assert hear(made, beat(2, step=40, step_age_s=29.0, step_bound_s=1.5)) is None
    assert 1 == made.ready()
    assert hear(made, beat(3, step=40, step_age_s=31.0, step_bound_s=1.5)) is not None


def test_a_hung_engine_gets_another_chance_in_the_end():
    made = lookout()
    hear(made, beat(1, step=40, step_age_s=31.0))

    hear(made, beat(2, step=40), now=HUNG_MEMORY_S - 1)
    before = made.ready()
    hear(made, beat(3, step=40), now=HUNG_MEMORY_S + 1)

    assert (0, 1) == (before, made.ready())


def test_gateways_are_counted_with_oneself():
    made = lookout()

    for number, name in enumerate(("g1", "g2", "g3")):
        made.gateway_beat(GatewayHeartbeat(gateway=GatewayId(name), beat=number))

    assert 3 == made.gateways
    wait(made, 0.0, 5.0)
    assert 1 == made.gateways


def test_an_engine_serves_one_service_whoever_says_otherwise():
    made = lookout()
    hear(made, beat(1))
    hear(made, msgspec.structs.replace(beat(2), service=ServiceName("theirs")))

    assert ["m"] == [info.name for info in made.present()]
    assert 1 == len(wait(made, 0.1, 5.0))


def test_services_without_engines_make_room():
    made = lookout()
    for number in range(MAX_SERVICES + 5):
        one = beat(1, engine=EngineId(f"e{number}"))
        made.engine_beat(
            msgspec.structs.replace(one, service=ServiceName(f"s{number}")), now=0.0, unix_s=1
        )
    assert MAX_SERVICES == len(made.present())

    wait(made, 0.1, 70.0)
    hear(made, beat(1), now=70.0)
    assert ["m"] == [info.name for info in made.present()]
    assert MAX_SERVICES == len(made.services)
