"""A recorded day of conversations, or some minutes of it: routing by warmth finds more and waits less than routing by load alone.

The figures over the whole trace come from `bench/routing_warmth.py`; bounds here leave room for another seed, not for another policy.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from services.gateway.routing import RoutingSettings
from tests.support.warm_fleet import (
    COLD,
    Fleet,
    Model,
    Pick,
    Result,
    read_trace,
    round_robin,
    routed,
)

TRACE = read_trace(Path(__file__).parents[1] / "support/data/mooncake_head.csv.gz")
MODEL = Model(pool_blocks=1500)
WARM = RoutingSettings()


@cache
def played(pick: Pick, settings: RoutingSettings, zones: int = 1) -> Result:
    fleet = Fleet(
        engines=9 if zones > 1 else 8,
        gateways=3 if zones > 1 else 2,
        zones=zones,
        model=MODEL,
        settings=settings,
    )
    return fleet.run(TRACE, pick)


def hit_rate(result: Result) -> float:
    return result.cached_tokens / result.prompt_tokens


@pytest.mark.parametrize(
    ("pick", "settings"), [(round_robin, COLD), (routed, COLD)], ids=["round robin", "least load"]
)
def test_more_is_found_and_less_is_waited(pick, settings):
    warm, other = played(routed, WARM), played(pick, settings)

    assert hit_rate(warm) > 1.8 * hit_rate(other)
    assert warm.quantile(0.5) < other.quantile(0.5)
    assert warm.quantile(0.95) <= other.quantile(0.95)


def test_load_stays_even():
    counts = played(routed, WARM).counts

    assert max(counts) < 1.5 * min(counts)


def test_zones_keep_their_bytes_without_waiting_longer():
    warm, least = played(routed, WARM, 3), played(routed, COLD, 3)

    assert warm.cross_bytes <= 0.7 * least.cross_bytes
    assert warm.quantile(0.95) <= least.quantile(0.95)


def test_warmth_that_is_lost_is_least_load_again():
    fleet = Fleet(engines=8, gateways=2, model=MODEL, settings=WARM, hears=False)

    blind = fleet.run(TRACE, routed)

    assert 0 == blind.warm
    assert blind.ttfts == played(routed, COLD).ttfts
