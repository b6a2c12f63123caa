"""A spread counts right, in whatever portions."""

from __future__ import annotations

import random

import pytest

from shared.latency_bounds import STAGE_S
from shared.spread import Spread


def test_a_spread_counts_as_a_search_for_each_value_would():
    draw = random.Random(3)
    values = [draw.choice((0, *STAGE_S)) * 1e6 + draw.choice((-1, 0, 1)) for _ in range(500)]
    spread, twice = Spread(STAGE_S), Spread(STAGE_S)
    for us in values:
        spread.put(us)
    spread.settle()
    twice.add(spread)
    twice.add(spread)

    counted = [sum(us <= bound * 1e6 for us in values) for bound in STAGE_S]

    assert counted == spread.at_most
    assert (500, pytest.approx(sum(values))) == (spread.count, spread.sum_us)
    assert [2 * count for count in counted] == twice.at_most


def test_what_was_put_waits_until_it_is_settled_and_counts_once():
    spread = Spread((0.001,))
    for us in (500, 1000, 1001):
        spread.put(us)

    assert (3, 0) == (spread.waiting, spread.count)
    for _ in range(2):
        spread.settle()
        assert (0, 3, [2], 2501) == (spread.waiting, spread.count, spread.at_most, spread.sum_us)
