"""The port through which whoever counts hears of calls."""

from __future__ import annotations

from typing import Protocol

from services.gateway.json_watch import JsonFault
from services.gateway.refusals import Setback
from services.gateway.running import Part, RunningCall
from shared.messages import Outcome


class CallObserver(Protocol):
    """Who counts. Must be quick."""

    def admitted(self, running: RunningCall, waited_s: float) -> None:
        """A call passed the gate."""
        ...

    def first_delta(self, running: RunningCall, now: float) -> None:
        """A call's first delta is here."""
        ...

    def retried(self, part: Part, setback: Setback) -> None:
        """A part goes to another engine: from its beginning, or to go on there (`part.way`)."""
        ...

    def json_broken(self, service: str, fault: JsonFault) -> None:
        """A choice of a finished answer had to be JSON and is not."""
        ...

    def ended(self, running: RunningCall, outcome: Outcome, now: float) -> None:
        """A call is over."""
        ...
