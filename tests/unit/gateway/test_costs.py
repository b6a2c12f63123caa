"""Warmth, load and distance in one currency: warm engines win while that saves work, and no gateway's preference overloads one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.costs import CostSettings, Prompt, far_tokens, saved_tokens
from services.gateway.routing import Route, RouteFacts, Router, RouteReason, RoutingSettings
from services.gateway.warmth import Found
from shared.ids import EngineId, ServiceName, StreamNo
from shared.messages import WARM_L1, WARM_L2, WARM_L3, EngineHeartbeat, EngineState, Warmth
from shared.prefixes import chain_of_text, packed, unpacked

TEXT = b"once upon a time there was " * 400
CHAIN = chain_of_text(TEXT, seed=1)
PIECES = unpacked(CHAIN.hashes)
WHOLE_TOKENS = len(TEXT) // 4
ANSWER = 500
FACTS = RouteFacts(
    service="m",
    work_tokens=WHOLE_TOKENS + ANSWER,
    chain=CHAIN,
    pieces=PIECES,
    prompt_bytes=len(TEXT),
)
SETTINGS = RoutingSettings()


def beat(number: int, tokens: int, zone: str = "") -> EngineHeartbeat:
    return EngineHeartbeat(
        engine=EngineId(f"e{number}"),
        service=ServiceName("m"),
        beat=1,
        state=EngineState.READY,
        backend="fake",
        zone=zone,
        outstanding_tokens=tokens,
        max_model_len=1 << 20,
        max_streams=64,
    )


class Desk:
    """A router that knows some engines, by their load, their warmth and their zone."""

    def __init__(
        self, *loads: int, settings=SETTINGS, zone: str = "", zones: str = "", seed: int = 1
    ) -> None:
        self.router = Router(settings, seed=seed, zone=zone)
        self.beats = []
        for number, tokens in enumerate(loads):
            one = beat(number, tokens, zones[number] if zones else "")
            self.beats.append(one)
            self.router.book.account(one.engine).observe(one, now=0.0)
            self.router.warmth.beat(one.engine, 0)

    def warm(self, number: int, *, tier: int = WARM_L1, pieces=PIECES, is_guess=False) -> None:
        self.router.warmth.hear(
            Warmth(
                service=ServiceName("m"),
                engine=EngineId(f"e{number}"),
                seq=1,
                hashes=packed(pieces),
                tiers=bytes([tier]) * len(pieces),
                store="s",
                is_guess=is_guess,
            )
        )

    def choose(self, facts: RouteFacts = FACTS, *, gateways: int = 1) -> Route:
        return self.router.choose(self.beats, facts, now=100.0, gateways=gateways)


def test_the_warm_engine_wins_and_the_route_says_so():
    desk = Desk(0, 0, 0)
    desk.warm(1)

    route = desk.choose()

    assert ("e1", RouteReason.WARM) == (route.engine, route.reason)
    assert WHOLE_TOKENS * 0.97 <= route.cached_tokens <= WHOLE_TOKENS
    assert route.saved_tokens == route.cached_tokens


def test_a_warm_engine_whose_queue_is_longer_than_computing_again_loses():
    desk = Desk(WHOLE_TOKENS + 400, 0)
    desk.warm(0)

    assert ("e1", RouteReason.BEST) == (desk.choose().engine, desk.choose().reason)


def test_where_load_would_have_chosen_the_same_it_was_not_warmth():
    desk = Desk(0, 5000)
    desk.warm(0)

    assert RouteReason.BEST is desk.choose().reason


@pytest.mark.parametrize(
    ("lower", "is_guess"), [(WARM_L2, False), (WARM_L3, False), (WARM_L1, True)]
)
def test_a_nearer_tier_is_worth_more(lower, is_guess):
    desk = Desk(0, 0)
    desk.warm(0, tier=lower, is_guess=is_guess)
    assert "e0" == desk.choose().engine
    desk = Desk(0, 0, 0)
    desk.warm(0, tier=lower, is_guess=is_guess)
    desk.warm(1)

    assert "e1" == desk.choose().engine


@pytest.mark.parametrize("share", ["warm_share_l1", "warm_share_l2", "warm_share_l3"])
def test_a_share_of_nothing_switches_a_tier_off(share):
    settings = RoutingSettings(**{share: 0.0})
    tier = {"1": WARM_L1, "2": WARM_L2, "3": WARM_L3}[share[-1]]
    desk = Desk(100, 0, settings=settings)
    desk.warm(0, tier=tier)

    assert 0 == desk.choose().saved_tokens


def test_the_near_zone_wins_until_it_has_more_to_do_than_the_way_costs():
    price = far_tokens(
        Prompt(work_tokens=FACTS.work_tokens, prompt_bytes=FACTS.prompt_bytes), SETTINGS
    )

    assert "e0" == Desk(int(price * 0.8), 0, zone="a", zones="ab").choose().engine
    assert "e1" == Desk(int(price * 1.5), 0, zone="a", zones="ab").choose().engine


@pytest.mark.parametrize(("own", "zones"), [("", "ab"), ("a", "")])
def test_where_zones_are_not_known_nobody_is_far(own, zones):
    desk = Desk(100, 0, zone=own, zones=zones)

    assert 0.9 < desk.choose().total <= 1.0
    assert "e1" == Desk(3000, 0, zone=own, zones=zones).choose().engine


def test_a_longer_round_trip_costs_and_an_unknown_one_does_not():
    desk = Desk(0, 0, 0)
    for number, us in enumerate((300, 80_300)):
        desk.router.book.account(EngineId(f"e{number}")).trip(us)

    assert {"e0", "e2"} == {desk.choose().engine for _ in range(50)}


loads = st.lists(st.integers(0, 200_000), min_size=2, max_size=8)


@given(loads, st.data())
def test_the_imbalance_that_warmth_may_cause_is_bounded(tokens, data):
    """Whatever is warm wherever: the chosen engine has at most as much more to do as it saves, but for the tie band."""
    desk = Desk(*tokens)
    for number in range(len(tokens)):
        count = data.draw(st.integers(0, len(PIECES)))
        if count:
            desk.warm(
                number,
                pieces=PIECES[:count],
                tier=data.draw(st.sampled_from([WARM_L1, WARM_L2, WARM_L3])),
            )

    route = desk.choose()

    assert route.engine is not None
    chosen = tokens[int(route.engine[1:])]
    base = SETTINGS.load_unit_tokens + FACTS.work_tokens
    least = min(tokens) + base
    assert chosen + base - route.saved_tokens <= least / (1 - SETTINGS.tie_band) + 1
    assert 0 <= route.saved_tokens <= route.cached_tokens <= FACTS.work_tokens


@given(loads, st.integers(1, 100))
def test_unknown_warmth_is_routing_by_load_alone(tokens, seed):
    plain = RouteFacts(service="m", work_tokens=FACTS.work_tokens)

    with_chain, without = Desk(*tokens, seed=seed), Desk(*tokens, seed=seed)

    for _ in range(5):
        assert with_chain.choose(FACTS) == without.choose(plain)


@given(st.integers(1, 6), st.integers(8, 80))
def test_gateways_that_all_know_the_same_do_not_herd(gateways, prompts):
    """Between two heartbeats, each sees only its own: a hot prefix still spreads once its engine has more to do than it saves."""
    desks = [Desk(0, 0, 0, 0, seed=number + 1) for number in range(gateways)]
    counts = [0, 0, 0, 0]
    for desk in desks:
        desk.warm(2)
    for number in range(prompts):
        desk = desks[number % gateways]
        route = desk.choose(gateways=gateways)
        assert route.engine is not None
        counts[int(route.engine[1:])] += 1
        desk.router.book.account(route.engine).sent(
            StreamNo(number), work_tokens=FACTS.work_tokens - route.saved_tokens, choices=1
        )

    # One that is warm costs ANSWER + 250 or so, a cold one all of it; each gateway may be wrong by one prompt.
    fair = (WHOLE_TOKENS + FACTS.work_tokens) / (ANSWER + SETTINGS.load_unit_tokens)
    assert counts[2] <= prompts * 0.9 + fair + gateways
    if prompts // gateways >= fair + 4:
        assert min(counts) > 0


@given(st.integers(0, 10**7), st.integers(0, 10**7), st.integers(0, 10**7), st.booleans())
def test_no_prefix_is_worth_more_than_its_tokens(l1, l2, l3, is_guess):
    found = Found(l1, l2, l3, is_guess)

    assert 0 <= saved_tokens(found, CostSettings()) <= found.total_bytes / 4
