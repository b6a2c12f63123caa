"""The account of a request: twelve stages that sum to its wall time, whatever the clocks say."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.ledger.account import Account, usual
from services.gateway.ledger.stamps import NEVER, Stay
from shared.ids import EngineId
from shared.messages import ENGINE_STAGES, STAGES, Spent, Stage

E = EngineId("e")
moments = st.floats(0, 1e5)
durations = st.lists(
    st.integers(0, 10_000_000), min_size=len(ENGINE_STAGES), max_size=len(ENGINE_STAGES)
)


def spent(received_at: float, **us: int) -> Spent:
    """Return what an engine says; its stages by name."""
    by_stage = [us.get(stage, 0) for stage in ENGINE_STAGES]
    return Spent(received_at=received_at, until=received_at + sum(by_stage) / 1e6, us=by_stage)


def by_name(account: Account) -> dict[str, int]:
    """Return the stages that got any time."""
    return {str(stage): us for stage, us in zip(STAGES, account.us, strict=True) if us}


def settle(
    stay: Stay | None,
    *lost: Stay,
    offered_at: float = 10.001,
    admitted_at: float = 10.003,
    ended_at: float = 12.0,
    is_whole: bool = True,
) -> Account:
    """Return the account of a request that began at 10 s."""
    account = Account(10.0)
    account.at_gateway(offered_at, admitted_at, ended_at)
    if admitted_at >= 0:
        account.at_engines(lost, stay, ended_at=ended_at, is_whole=is_whole)
    return account


def test_an_engine_with_our_clock_stands_on_our_line():
    told = spent(10.010, queue=100_000, prefill=300_000, decode=500_000)
    stay = Stay(E, None, 10.004, is_same_clock=True, is_taken=True)
    stay.first_at, stay.last_at, stay.told_at, stay.spent = 10.45, 10.95, 10.95, told

    account = settle(stay, ended_at=10.96)

    assert not account.is_estimated
    assert 910_000 == pytest.approx(account.at_us, abs=2)
    found = by_name(account)
    assert 7_000 == pytest.approx(found.pop("route"), abs=2)
    assert 2_000 == pytest.approx(found.pop("admit"), abs=2)
    assert 1_000 == pytest.approx(found.pop("receive"), abs=2)
    assert {"queue": 100_000, "prefill": 300_000, "decode": 500_000} == found


@pytest.mark.parametrize("offset_s", [-1e6, -0.5, 0.0, 3.0, 1e6])
@pytest.mark.parametrize(
    ("trip_us", "there_us"), [(-1, 24_000), (10_000, 5_000), (10_000_000, 48_000)]
)
def test_of_another_clock_durations_count_and_the_ways_share_the_rest(offset_s, trip_us, there_us):
    told = spent(10.010 + offset_s, prefill=300_000, decode=600_000)
    stay = Stay(E, None, 10.002, trip_us=trip_us, is_taken=True)
    stay.first_at, stay.last_at, stay.told_at, stay.spent = 10.45, 10.95, 10.95, told

    account = settle(stay, admitted_at=10.002, ended_at=10.96)

    found = by_name(account)
    assert (300_000, 600_000) == (found["prefill"], found["decode"])
    assert there_us == pytest.approx(found["route"], abs=2)


def test_a_clock_that_only_claims_to_be_ours_is_another_one():
    told = spent(5.0, prefill=900_000)
    stay = Stay(E, None, 10.003, is_same_clock=True, is_taken=True)
    stay.first_at = stay.last_at = stay.told_at = 11.003
    stay.spent = told

    found = by_name(settle(stay))

    assert 900_000 == found["prefill"]
    assert 50_000 == pytest.approx(found["route"], abs=2)


def test_an_engine_that_claims_more_time_than_there_was_is_cut_to_it():
    stay = Stay(E, None, 10.003, is_taken=True)
    stay.first_at = stay.last_at = stay.told_at = 10.903
    stay.spent = spent(1.0, queue=1_000_000, decode=8_000_000)

    account = settle(stay, ended_at=10.91)

    found = by_name(account)
    assert account.is_estimated
    assert 100_000 == pytest.approx(found["queue"], abs=2)
    assert 800_000 == pytest.approx(found["decode"], abs=2)


def test_an_engine_that_cannot_tell_is_seen_from_outside():
    stay = Stay(E, None, 10.010, is_same_clock=True, is_taken=True)
    stay.first_at, stay.last_at = 10.5, 11.5

    account = settle(stay)

    found = by_name(account)
    assert account.is_estimated
    assert 490_000 == pytest.approx(found["prefill"], abs=2)
    assert 1_000_000 == pytest.approx(found["decode"], abs=2)
    assert 1_500_000 == pytest.approx(account.at_us, abs=2)


@pytest.mark.parametrize(
    ("offered_at", "admitted_at", "stage"),
    [(NEVER, NEVER, "receive"), (10.0, NEVER, "admit"), (10.0, 10.0, "route")],
)
def test_a_request_that_got_no_further_spent_its_time_where_it_was(offered_at, admitted_at, stage):
    account = settle(None, offered_at=offered_at, admitted_at=admitted_at, is_whole=False)

    assert {stage: 2_000_000} == by_name(account)


@pytest.mark.parametrize(
    ("is_taken", "first_at", "stage"),
    [(False, NEVER, "route"), (True, NEVER, "prefill"), (True, 10.0, "decode")],
)
def test_one_that_ends_at_an_engine_too(is_taken, first_at, stage):
    stay = Stay(E, None, 10.0, is_taken=is_taken, first_at=first_at, last_at=first_at)

    account = settle(stay, offered_at=10.0, admitted_at=10.0, is_whole=False)

    assert {stage: 2_000_000} == by_name(account)


def test_from_the_last_sign_of_life_of_a_lost_engine_to_the_next_one_is_route():
    dead = Stay(E, None, 10.0, is_same_clock=True, is_taken=True)
    dead.first_at, dead.told_at, dead.spent = 10.3, 10.3, spent(10.1, prefill=200_000)
    dead.last_at, dead.left_at = 10.8, 10.9
    stay = Stay(E, None, 10.95, is_same_clock=True, is_taken=True)
    stay.first_at = stay.last_at = stay.told_at = 12.0
    stay.spent = spent(11.0, prefill=100_000, decode=900_000)

    account = settle(stay, dead, offered_at=10.0, admitted_at=10.0)

    found = by_name(account)
    assert account.is_estimated
    assert 300_000 == pytest.approx(found["prefill"], abs=2)
    assert 900_000 + 500_000 == pytest.approx(found["decode"], abs=2)
    assert 100_000 + 200_000 == pytest.approx(found["route"], abs=2)
    assert 2_000_000 == pytest.approx(account.at_us, abs=2)


@pytest.mark.parametrize(
    "told",
    [
        Spent(received_at=10.1, until=10.2, us=[1, 2]),
        Spent(received_at=10.1, until=10.2, us=[-1, 0, 0, 0, 0, 0, 0, 0]),
        Spent(received_at=math.nan, until=10.2, us=[1] * 8),
        Spent(received_at=math.inf, until=math.inf, us=[1] * 8),
        Spent(received_at=-math.inf, until=10.0, us=[1] * 8),
    ],
)
def test_what_makes_no_sense_is_not_heard(told):
    stay = Stay(E, None, 10.0, is_same_clock=True, is_taken=True)
    stay.first_at = stay.last_at = stay.told_at = 11.0
    stay.spent = told

    account = settle(stay, offered_at=10.0, admitted_at=10.0, ended_at=11.0)

    assert account.is_estimated
    assert usual(10.0, 10.0, 10.0, stay) is None
    assert {"prefill": 1_000_000} == by_name(account)


@st.composite
def stays(draw) -> Stay:
    """Any stay, also one that cannot be: each moment for itself."""
    stay = Stay(E, None, draw(moments), is_same_clock=draw(st.booleans()), is_taken=True)
    stay.trip_us = draw(st.integers(-1, 1_000_000))
    stay.first_at = draw(st.just(NEVER) | moments)
    stay.last_at = draw(st.just(stay.first_at) | moments)
    stay.left_at = draw(st.just(NEVER) | moments)
    if draw(st.booleans()):
        received_at = draw(moments | st.floats(-1e9, 1e9))
        stay.told_at = draw(st.just(stay.last_at) | moments)
        stay.spent = Spent(received_at=received_at, until=received_at, us=draw(durations))
    return stay


@given(
    marks=st.tuples(moments, moments, moments, moments),
    present=st.none() | stays(),
    lost=st.lists(stays(), max_size=3),
    is_whole=st.booleans(),
)
def test_stages_sum_to_the_time_that_passed_and_none_is_negative(marks, present, lost, is_whole):
    began, offered_at, admitted_at, ended_at = marks
    account = Account(began)

    account.at_gateway(offered_at, admitted_at, ended_at)
    account.at_engines(lost, present, ended_at=ended_at, is_whole=is_whole)

    assert account.at_us == sum(account.us)
    assert min(account.us) >= 0
    assert len(STAGES) == len(account.us)


@given(
    gaps=st.lists(st.floats(0, 100), min_size=4, max_size=4),
    us=durations,
    late_s=st.floats(-0.001, 10),
    is_same_clock=st.booleans(),
)
def test_the_short_way_says_what_the_long_one_does(gaps, us, late_s, is_same_clock):
    offered_at, admitted_at, submitted_at, received_at = [
        10.0 + sum(gaps[: n + 1]) for n in range(4)
    ]
    stay = Stay(E, None, submitted_at, is_same_clock=is_same_clock, is_taken=True)
    until = received_at + sum(us) / 1e6
    stay.spent = Spent(received_at=received_at, until=until, us=us)
    stay.first_at = stay.last_at = stay.told_at = until + late_s

    short = usual(10.0, offered_at, admitted_at, stay)
    long = settle(stay, offered_at=offered_at, admitted_at=admitted_at, ended_at=until + late_s)

    if is_same_clock and late_s > 0.0001:
        assert short is not None
    if short is not None:
        assert is_same_clock
        assert (long.us, long.at_us, False) == short
        assert not long.is_estimated


@given(
    us=durations,
    offset_s=st.floats(-1e9, 1e9),
    ways_s=st.floats(0.001, 5),
    trip_us=st.integers(-1, 10**7),
)
def test_whatever_the_offset_of_another_clock_its_durations_stay(us, offset_s, ways_s, trip_us):
    stay = Stay(E, None, 10.0, trip_us=trip_us, is_taken=True)
    stay.spent = Spent(received_at=offset_s, until=offset_s + sum(us) / 1e6, us=us)
    stay.first_at = stay.last_at = stay.told_at = 10.0 + sum(us) / 1e6 + ways_s

    account = settle(stay, offered_at=10.0, admitted_at=10.0, ended_at=stay.told_at)

    first = STAGES.index(Stage.TOKENIZE)
    assert us == account.us[first : first + len(us)]
    assert 0 <= account.us[STAGES.index(Stage.ROUTE)] <= ways_s * 1e6 + 1
