"""Requests fall into bands by their duration among the last ones, and the bands say what the time went to."""

from __future__ import annotations

import random

from services.tracer.blame_bands import BANDS, LEAST, REFRESH, WINDOW, Band, BlameBands
from shared.messages import STAGES, Stage

P50, P95, P99 = (BANDS.index(band) for band in Band)


def spent(**us: int) -> list[int]:
    return [us.get(stage, 0) for stage in STAGES]


def fed(durations: list[int]) -> BlameBands:
    bands = BlameBands()
    for us in durations:
        bands.observe(us, spent(decode=us))
    bands.settle()
    return bands


def test_too_few_requests_have_no_bands():
    bands = fed(list(range(LEAST - 1)))

    assert () == bands.edges_us
    assert [0, 0, 0] == bands.requests


def test_requests_fall_by_their_duration():
    durations = [*range(1, 1001)] * 8
    random.Random(5).shuffle(durations)
    bands = fed(durations)

    share = [count / sum(bands.requests) for count in bands.requests]

    # Half of all are typical, 4% slow, 1% slowest; the rest is in no band.
    for wanted, seen in zip((0.5 / 0.55, 0.04 / 0.55, 0.01 / 0.55), share, strict=True):
        assert abs(wanted - seen) < 0.03
    assert 220 <= bands.edges_us[0] <= 280
    assert 980 <= bands.edges_us[3] <= 1000


def test_where_all_take_the_same_time_nobody_is_slow():
    bands = fed([5000] * 400)

    assert [400 - LEAST, 0, 0] == bands.requests


def test_the_stage_that_makes_the_slowest_slow_stands_out():
    bands = BlameBands()
    for number in range(4 * WINDOW):
        is_held_up = number % 50 == 0
        stages = spent(decode=1000 + number % 7, decode_wait=9000 if is_held_up else 0)
        bands.observe(sum(stages), stages)
    bands.settle()

    decode_wait = STAGES.index(Stage.DECODE_WAIT)
    blame = [
        sums[decode_wait] / max(requests, 1)
        for sums, requests in zip(bands.stage_us, bands.requests, strict=True)
    ]

    assert 0 == blame[P50]
    assert 9000 == blame[P99]


def test_bands_follow_a_shift():
    bands = fed([*range(1000, 2000)] * 2 + [*range(10_000, 11_000)] * (WINDOW // 500))

    assert bands.edges_us[0] > 10_000
    assert bands.requests[P50] > 3 * REFRESH
