"""How the tracer takes itself back: halvings above 2% of a core, failures only above 15%, back step by step."""

from __future__ import annotations

import pytest

from services.tracer.restraint import CALM_WINDOWS, WINDOW_S, Restraint


def measured(restraint: Restraint, *shares: float, engines: int = 1) -> Restraint:
    for share in shares:
        restraint.measure(share * WINDOW_S * engines, window_s=WINDOW_S, engines=engines)
    return restraint


@pytest.mark.parametrize(
    ("shares", "level", "factor"),
    [
        ((), 0, 1.0),
        ((0.019, 0.019), 0, 1.0),
        ((0.03,), 1, 0.5),
        ((0.03, 0.03, 0.03), 1, 0.125),
        ((0.03, 0.03, 0.03, 0.03), 2, 0.0),
        ((0.03,) * 9, 2, 0.0),
        ((0.16,), 2, 0.0),
        ((0.03, 0.015, 0.015, 0.015, 0.015), 1, 0.5),
        ((0.03, *[0.005] * CALM_WINDOWS), 0, 1.0),
        ((0.03, *[0.005] * (CALM_WINDOWS - 1)), 1, 0.5),
        ((0.03, 0.005, 0.005, 0.015, 0.005, 0.005), 1, 0.5),
        ((0.16, *[0.005] * CALM_WINDOWS), 1, 0.125),
        ((0.16, *[0.005] * (2 * CALM_WINDOWS - 1)), 1, 0.125),
        ((0.16, *[0.005] * 4 * CALM_WINDOWS), 0, 1.0),
    ],
)
def test_steps_down_and_back(shares, level, factor):
    restraint = measured(Restraint(), *shares)

    assert (level, factor) == (restraint.level, restraint.factor)


def test_the_cost_is_shared_by_the_engines():
    assert 0 == measured(Restraint(), 0.019, engines=8).level
    assert 1 == measured(Restraint(), 0.021, engines=8).level
    assert 0.019 == pytest.approx(measured(Restraint(), 0.019, engines=8).share)
