"""Every cell of the stream's table: the legal ones lead where they should, the others are refused."""

from __future__ import annotations

import itertools

import pytest

from services.engine.lifecycle import LIFE, Event, Phase
from shared.transitions import IllegalTransition

LEGAL = {
    (Phase.SUBMITTING, Event.ACCEPT): Phase.RUNNING,
    (Phase.SUBMITTING, Event.REFUSE): Phase.DROPPED,
    (Phase.SUBMITTING, Event.LAST): Phase.FINISHED,
    (Phase.SUBMITTING, Event.CUT): Phase.DROPPED,
    (Phase.SUBMITTING, Event.DROP): Phase.DROPPED,
    (Phase.RUNNING, Event.LAST): Phase.FINISHED,
    (Phase.RUNNING, Event.CUT): Phase.FINISHED,
    (Phase.RUNNING, Event.DROP): Phase.DROPPED,
    (Phase.FINISHED, Event.ACCEPT): Phase.FINISHED,
}


@pytest.mark.parametrize(("phase", "event"), list(itertools.product(Phase, Event)))
def test_every_cell_leads_where_it_should_or_is_refused(phase, event):
    if (phase, event) in LEGAL:
        assert LEGAL[phase, event] is LIFE.next(phase, event)
    else:
        with pytest.raises(IllegalTransition, match=f"{event}.*{phase}"):
            LIFE.next(phase, event)


def test_dropped_is_the_end():
    assert [phase for phase in Phase if LIFE.is_terminal(phase)] == [Phase.DROPPED]
