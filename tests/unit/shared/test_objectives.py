"""Objectives as people write them: what they mean, and what is told where they mean nothing."""

from __future__ import annotations

import pytest

from shared.errors import UserError
from shared.objectives import Measure, parse_objective


@pytest.mark.parametrize(
    ("text", "measure", "percent", "limit_s", "name"),
    [
        ("P99 < 2s", Measure.LATENCY, 99, 2.0, "latency_p99"),
        ("p99.9 latency <= 2.5 s", Measure.LATENCY, 99.9, 2.5, "latency_p99.9"),
        ("P95 TTFT < 500ms", Measure.TTFT, 95, 0.5, "ttft_p95"),
        ("P50 TPOT<50 ms", Measure.TPOT, 50, 0.05, "tpot_p50"),
        ("P90 < 1m", Measure.LATENCY, 90, 60.0, "latency_p90"),
        ("availability >= 99.9%", Measure.AVAILABILITY, 99.9, 0.0, "availability"),
        ("Availability > 99 %", Measure.AVAILABILITY, 99, 0.0, "availability"),
    ],
)
def test_what_a_text_promises(text, measure, percent, limit_s, name):
    objective = parse_objective(text)

    assert (measure, percent, limit_s) == (objective.measure, objective.percent, objective.limit_s)
    assert name == objective.name
    assert (100 - percent) / 100 == pytest.approx(objective.budget)


@pytest.mark.parametrize(
    ("limit", "bound_s"), [("2s", 2.0), ("3s", 2.56), ("600s", 600.0), ("15ms", 0.01)]
)
def test_the_bound_that_is_measured_is_never_more_lenient_than_the_limit(limit, bound_s):
    assert bound_s == parse_objective(f"P99 < {limit}").bound_s


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no objective"),
        ("fast", "no objective"),
        ("P99", "no objective"),
        ("P99 < soon", "no objective"),
        ("P99 < 2", "no objective"),
        ("P99 > 2s", "no objective"),
        ("P100 < 2s", "not between 0 and 100"),
        ("P0 < 2s", "not between 0 and 100"),
        ("availability >= 100%", "not between 0 and 100"),
        ("P99 availability < 2s", "no percentile"),
        ("P99 throughput < 2s", "'throughput' is not measured"),
        ("P99 < 1ms", "can be measured at 0.001 s"),
        ("P99 < 20m", "can be measured at 1200 s"),
    ],
)
def test_nonsense_is_told(text, told):
    with pytest.raises(UserError) as caught:
        parse_objective(text)

    assert told in str(caught.value)
    assert caught.value.hint
