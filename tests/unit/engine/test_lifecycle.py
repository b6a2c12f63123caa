"""Every cell of the stream's table: the legal ones lead where they should, the others are refused."""

from __future__ import annotations

import itertools

import pytest

from services.engine.lifecycle import TRANSITIONS, Event, IllegalTransitionError, Phase, advance

EVERY = set(itertools.product(Phase, Event))
LEGAL = {(phase, event) for phase, row in TRANSITIONS.items() for event in row}


def test_every_phase_has_a_row():
    assert set(Phase) == set(TRANSITIONS)


def test_dropped_is_the_end():
    assert {} == TRANSITIONS[Phase.DROPPED]


@pytest.mark.parametrize(("phase", "event"), sorted(LEGAL))
def test_legal_events_lead_to_the_tables_phase(phase, event):
    assert TRANSITIONS[phase][event] is advance(phase, event)


@pytest.mark.parametrize(("phase", "event"), sorted(EVERY - LEGAL))
def test_other_events_are_refused_with_both_names(phase, event):
    with pytest.raises(IllegalTransitionError, match=f"{phase}.*{event}"):
        advance(phase, event)


@pytest.mark.parametrize("phase", [Phase.SUBMITTING, Phase.RUNNING])
def test_a_live_stream_can_always_be_cut_and_dropped(phase):
    assert advance(phase, Event.CUT) in {Phase.FINISHED, Phase.DROPPED}
    assert Phase.DROPPED is advance(phase, Event.DROP)
