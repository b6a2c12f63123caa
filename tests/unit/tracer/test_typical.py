"""What is learned of a service: quantiles that fade, and its requests a second."""

from __future__ import annotations

import random

import pytest

from services.tracer.typical import WARM, Durations, Throughput


def test_quantiles_are_right_within_a_tenth():
    durations, draw = Durations(), random.Random(7)
    values = [int(draw.lognormvariate(13, 0.8)) for _ in range(4_000)]
    for value in values:
        durations.observe(value)

    values.sort()
    assert values[2_000] == pytest.approx(durations.p50_us, rel=0.12)
    assert values[3_960] == pytest.approx(durations.p99_us, rel=0.15)


def test_the_past_fades():
    durations = Durations()
    for us in (1_000, 900_000):
        for _ in range(20_000):
            durations.observe(us)

    assert 900_000 == pytest.approx(durations.p50_us, rel=0.1)


def test_quantiles_mean_nothing_at_first():
    durations = Durations()
    for _ in range(WARM - 1):
        durations.observe(5)

    assert not durations.is_known
    durations.observe(0)
    assert durations.is_known


def test_throughput_follows_and_quiet_seconds_count():
    flow = Throughput()
    for n in range(20_000):
        flow.count(n / 1_000)

    assert 1_000 == pytest.approx(flow.per_s, rel=0.02)
    flow.advance(60.0)
    assert flow.per_s < 1
