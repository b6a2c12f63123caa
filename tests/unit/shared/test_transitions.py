"""Lifecycles as tables."""

from __future__ import annotations

import pytest

from shared.health import Health, HealthState
from shared.transitions import IllegalTransition, Transitions

DOOR = Transitions(
    "door",
    {"open": {"close": "closed"}, "closed": {"open": "open", "lock": "locked"}, "locked": {}},
)


def test_a_cell_gives_the_next_state():
    assert "closed" == DOOR.next("open", "close")
    assert "locked" == DOOR.next("closed", "lock")


@pytest.mark.parametrize(
    ("state", "event"), [("open", "lock"), ("locked", "open"), ("open", "burn")]
)
def test_an_empty_cell_is_refused_with_both_names(state: str, event: str):
    with pytest.raises(IllegalTransition, match=f"door: no {event} in state {state}") as refusal:
        DOOR.next(state, event)

    assert (state, event) == (refusal.value.state, refusal.value.event)


def test_a_state_without_exits_is_terminal():
    assert [False, False, True] == [
        DOOR.is_terminal(state) for state in ("open", "closed", "locked")
    ]


def test_a_target_without_a_row_is_a_mistake_in_the_table():
    with pytest.raises(ValueError, match=r"states without a row: \{'b'\}"):
        Transitions("broken", {"a": {"go": "b"}})


def test_nothing_leads_back_from_draining():
    health = Health()
    health.move(HealthState.READY)
    assert health.is_ready
    health.move(HealthState.DRAINING, "SIGTERM")

    with pytest.raises(IllegalTransition):
        health.move(HealthState.READY)

    assert HealthState.DRAINING is health.state
    assert "<Health draining: SIGTERM>" == repr(health)
