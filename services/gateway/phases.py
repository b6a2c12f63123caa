"""The lives of a call and of its parts, as tables. A call is one request of a client; a part is one prompt of it, at one engine
at a time.
"""

from __future__ import annotations

from enum import StrEnum

from shared.transitions import Transitions


class CallPhase(StrEnum):
    """Where a call stands."""

    WAITING = "waiting"
    """At the gate."""
    PLACING = "placing"
    """Let in; not all parts have been taken by an engine."""
    ANSWERING = "answering"
    """All parts were taken once; a streamed answer has begun."""
    OVER = "over"


class CallEvent(StrEnum):
    """What can happen to a call."""

    ADMIT = "admit"
    BEGIN = "begin"
    END = "end"
    """Finished, failed, refused, expired, or the client left: `Outcome` says which."""


CALL_LIFE: Transitions[CallPhase, CallEvent] = Transitions(
    "call",
    {
        CallPhase.WAITING: {
            CallEvent.ADMIT: CallPhase.PLACING,
            CallEvent.END: CallPhase.OVER,
        },
        CallPhase.PLACING: {
            CallEvent.BEGIN: CallPhase.ANSWERING,
            CallEvent.END: CallPhase.OVER,
        },
        CallPhase.ANSWERING: {CallEvent.END: CallPhase.OVER},
        CallPhase.OVER: {},
    },
)


class PartPhase(StrEnum):
    """Where a part stands."""

    PLACING = "placing"
    """No engine has taken it yet, or the one that had is lost."""
    RUNNING = "running"
    """An engine has it: by its reply, or by a first delta that overtook the reply."""
    DONE = "done"
    """Its last delta is here, or the call is over."""


class PartEvent(StrEnum):
    """What can happen to a part."""

    TAKEN = "taken"
    LOST = "lost"
    """The engine is gone, hangs or failed, and nothing of this part was shown yet."""
    CLOSE = "close"


PART_LIFE: Transitions[PartPhase, PartEvent] = Transitions(
    "part",
    {
        PartPhase.PLACING: {
            PartEvent.TAKEN: PartPhase.RUNNING,
            # The engine may be lost while its reply is awaited.
            PartEvent.LOST: PartPhase.PLACING,
            PartEvent.CLOSE: PartPhase.DONE,
        },
        PartPhase.RUNNING: {
            # The reply comes after the first delta, or the other way round.
            PartEvent.TAKEN: PartPhase.RUNNING,
            PartEvent.LOST: PartPhase.PLACING,
            PartEvent.CLOSE: PartPhase.DONE,
        },
        PartPhase.DONE: {},
    },
)
