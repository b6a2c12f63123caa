"""Looks whether answers that must be JSON are: an outlet around another one, only for requests with `response_format`."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import msgspec
from typing_extensions import override

from services.gateway.call import ApiError, Call
from services.gateway.ledger.timing import Timing
from services.gateway.outlet import Outlet
from shared.messages import Delta, Finish, Usage


class JsonFault(StrEnum):
    """Why a choice is not the JSON that was asked for."""

    CUT_OFF = "cut_off"
    """It came to the end of its tokens first."""
    MALFORMED = "malformed"


Note = Callable[[str, JsonFault], None]
"""Called with the service and the fault of a choice."""


def watched(call: Call, outlet: Outlet, note: Note) -> Outlet:
    """Return the outlet of a call, watched where the answer must be JSON."""
    must_be_json = call.sampling.json_object or call.sampling.json_schema is not None
    return JsonWatch(call, outlet, note) if must_be_json else outlet


class JsonWatch:
    """Implements `Outlet`. Keeps the text, which is no longer than what the ring of an engine or the client keeps of it."""

    def __init__(self, call: Call, outlet: Outlet, note: Note) -> None:
        self._outlet = outlet
        self._note = note
        self._service = call.model
        self._must_be_object = call.sampling.json_object
        self._texts: dict[int, list[str]] = {}
        self._ends: dict[int, Finish] = {}
        self.begin = outlet.begin
        self.continued = outlet.continued
        self.fail = outlet.fail
        self.too_large = outlet.too_large
        self.when_sent = outlet.when_sent

    @override
    def __repr__(self) -> str:
        return f"<JsonWatch {len(self._texts)} choices of {self._service}>"

    @property
    def is_streamed(self) -> bool:
        """See `Outlet`."""
        return self._outlet.is_streamed

    def delta(self, delta: Delta, choice: int) -> None:
        """See `Outlet`."""
        self._texts.setdefault(choice, []).append(delta.text)
        if delta.finish is not None:
            self._ends[choice] = delta.finish
        self._outlet.delta(delta, choice)

    def finish(self, usage: Usage, timing: Timing | None) -> ApiError | None:
        """See `Outlet`."""
        error = self._outlet.finish(usage, timing)
        if error is None:
            for choice, end in self._ends.items():
                self._look(choice, end)
        return error

    def _look(self, choice: int, end: Finish) -> None:
        if end is Finish.TOOL_CALLS:
            return
        if not self._is_json("".join(self._texts[choice])):
            self._note(
                self._service, JsonFault.CUT_OFF if end is Finish.LENGTH else JsonFault.MALFORMED
            )

    def _is_json(self, text: str) -> bool:
        try:
            value = msgspec.json.decode(text.encode())
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return False
        return isinstance(value, dict) or not self._must_be_object
