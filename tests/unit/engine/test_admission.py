"""What an engine refuses before it asks its backend, and how it says so."""

from __future__ import annotations

import math

import msgspec
import pytest

from services.engine.admission import Room, why_not
from services.engine.pace import Pace, retry_after_s
from shared.health import Health, HealthState
from shared.ids import EngineId, GatewayId, RequestId, ServiceName, StreamNo
from shared.messages import RefuseReason, Sampling, Submit, TextPrompt

ROOM = Room(
    max_streams=4,
    resumes=True,
    max_waiting=10,
    waiting=0,
    outstanding_tokens=100,
    tokens_per_s=10.0,
)
SUBMIT = Submit(
    engine=EngineId("e1"),
    gateway=GatewayId("g1"),
    stream=StreamNo(1),
    request=RequestId("r"),
    service=ServiceName("s"),
    prompt=TextPrompt(text="x"),
    sampling=Sampling(),
    deadline_s=10.0,
)


def health(state: HealthState = HealthState.READY) -> Health:
    made = Health()
    made.move(state, "broken")
    return made


def changed(**changes) -> Submit:
    return msgspec.structs.replace(SUBMIT, **changes)


def test_an_ordinary_submit_is_taken():
    assert why_not(SUBMIT, health(), ROOM) is None


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (HealthState.STARTING, RefuseReason.NOT_READY),
        (HealthState.DRAINING, RefuseReason.DRAINING),
        (HealthState.FAILED, RefuseReason.NOT_READY),
    ],
)
def test_only_a_ready_engine_takes_work(state, reason):
    refusal = why_not(SUBMIT, health(state), ROOM)

    assert refusal is not None
    assert refusal.reason is reason


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"sampling": Sampling(n=0)}, "n"),
        ({"sampling": Sampling(n=5)}, "n"),
        ({"sampling": Sampling(max_tokens=0)}, "max_tokens"),
        ({"sampling": Sampling(min_tokens=-1)}, "min_tokens"),
        ({"sampling": Sampling(logprobs=-1)}, "logprobs"),
        ({"sampling": Sampling(logprobs=2**40)}, "logprobs"),
        ({"sampling": Sampling(temperature=math.nan)}, "temperature"),
        ({"sampling": Sampling(frequency_penalty=math.inf)}, "frequency_penalty"),
        ({"sampling": Sampling(logit_bias={7: -math.inf})}, "logit_bias"),
        ({"gateway": GatewayId("g.*")}, None),
        ({"gateway": GatewayId("")}, None),
    ],
)
def test_what_no_gateway_sends_is_refused(changes, param):
    refusal = why_not(changed(**changes), health(), ROOM)

    assert refusal is not None
    assert (RefuseReason.INVALID, param) == (refusal.reason, refusal.param)


@pytest.mark.parametrize("deadline_s", [0.0, -1.0, math.nan])
def test_a_passed_deadline_is_refused(deadline_s):
    refusal = why_not(changed(deadline_s=deadline_s), health(), ROOM)

    assert refusal is not None
    assert refusal.reason is RefuseReason.OVERLOADED


@pytest.mark.parametrize(("waiting", "is_taken"), [(8, True), (9, False)])
def test_waiting_choices_are_bounded(waiting, is_taken):
    submit = changed(sampling=Sampling(n=2))
    refusal = why_not(submit, health(), msgspec.structs.replace(ROOM, waiting=waiting))

    assert is_taken == (refusal is None)
    if refusal is not None:
        assert refusal.retry_after_s == 10.0


@pytest.mark.parametrize(
    ("tokens", "pace", "expected_s"),
    [(0, 0.0, 1.0), (5, 10.0, 1.0), (200, 10.0, 20.0), (9999, 1.0, 30.0)],
)
def test_the_time_to_stay_away_follows_the_work(tokens, pace, expected_s):
    assert expected_s == retry_after_s(tokens, pace)


def test_the_pace_approaches_the_rate_whatever_the_intervals():
    for interval_s in (0.1, 0.5, 3.0):
        pace = Pace()
        for number in range(int(60 / interval_s)):
            pace.update(int(number * interval_s * 50), now=number * interval_s)

        assert pace.per_s == pytest.approx(50, rel=0.1)


def test_the_same_moment_twice_changes_nothing():
    pace = Pace()
    pace.update(0, now=1.0)
    pace.update(100, now=1.0)

    assert pace.per_s == 0.0


def test_a_burst_that_finds_free_places_is_taken():
    full = msgspec.structs.replace(ROOM, waiting=10)

    assert why_not(SUBMIT, health(), full) is not None
    assert why_not(SUBMIT, health(), msgspec.structs.replace(full, free=1)) is None
    assert why_not(SUBMIT, health(), msgspec.structs.replace(full, waiting=11, free=1)) is not None
