"""The life of a stream at an engine, as a table.

All transitions live here. What follows from one (deltas, aborts, answers) is arranged by `streams` and `service`.

Submitting: the backend has been asked and has not answered. Running: it took the job.
Finished: the last delta is out, and deltas are kept for resends. Dropped: nobody wants it, nothing is kept.
"""

from __future__ import annotations

from enum import StrEnum

from shared.transitions import Transitions


class Phase(StrEnum):
    """Where a stream stands."""

    SUBMITTING = "submitting"
    RUNNING = "running"
    FINISHED = "finished"
    DROPPED = "dropped"


class Event(StrEnum):
    """What can happen to a stream."""

    ACCEPT = "accept"
    """The backend took the job."""
    REFUSE = "refuse"
    """The backend did not take the job."""
    LAST = "last"
    """The backend sent the last piece."""
    CUT = "cut"
    """We end it and say so: deadline, end of the drain, dead backend."""
    DROP = "drop"
    """Nobody reads it any more: cancel, or its gateway is gone."""


LIFE: Transitions[Phase, Event] = Transitions(
    "stream",
    {
        Phase.SUBMITTING: {
            Event.ACCEPT: Phase.RUNNING,
            Event.REFUSE: Phase.DROPPED,
            Event.LAST: Phase.FINISHED,
            # The caller learns of it from the refusal, not from deltas.
            Event.CUT: Phase.DROPPED,
            Event.DROP: Phase.DROPPED,
        },
        Phase.RUNNING: {
            Event.LAST: Phase.FINISHED,
            Event.CUT: Phase.FINISHED,
            Event.DROP: Phase.DROPPED,
        },
        Phase.FINISHED: {
            # A short answer can be complete before the backend's `submit` returns.
            Event.ACCEPT: Phase.FINISHED,
        },
        Phase.DROPPED: {},
    },
)
