"""A call under way and its parts: values that `calls.py` changes, and the hot path from a delta to the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from typing_extensions import override

from services.gateway.admission.verdict import Ticket
from services.gateway.call import ApiError, Call
from services.gateway.outlet import Caller, Outlet
from services.gateway.phases import (
    CALL_LIFE,
    PART_LIFE,
    CallEvent,
    CallPhase,
    PartEvent,
    PartPhase,
)
from shared.ids import EngineId, StreamNo, new_request_id
from shared.messages import Delta, Priority, Prompt, Usage

PREFIX = {"chat": "chatcmpl", "completion": "cmpl"}


class Part:
    """One prompt of a call. Its `take` is the sink of its stream."""

    __slots__ = (
        "_emit",
        "_is_fast",
        "_notice",
        "attempts",
        "call",
        "engine",
        "first_choice",
        "has_begun",
        "held",
        "is_live",
        "last_error",
        "phase",
        "placed_at",
        "prompt",
        "stream",
        "tried",
        "usage",
        "work_tokens",
    )

    def __init__(
        self,
        call: RunningCall,
        prompt: Prompt,
        *,
        first_choice: int,
        notice: Callable[[Part, Delta], None],
    ) -> None:
        self.call = call
        self.prompt = prompt
        self.first_choice = first_choice
        self.phase = PartPhase.PLACING
        self.attempts = 0
        self.tried: set[EngineId] = set()
        self.engine: EngineId | None = None
        self.stream: StreamNo | None = None
        self.placed_at = 0.0
        self.has_begun = False
        """The engine sent a delta in this attempt."""
        self.is_live = False
        """Deltas go to the client as they come; else they are held."""
        self.held: list[Delta] = []
        self.usage: Usage | None = None
        self.work_tokens = max(1, call.call.work_tokens // len(call.call.prompts))
        """This part's share of the call's estimated token work."""
        self.last_error: ApiError | None = None
        """What the last engine that was tried said."""
        self._is_fast = False
        self._emit = call.outlet.delta
        self._notice = notice

    @override
    def __repr__(self) -> str:
        return f"<Part {self.call.request}/{self.first_choice} {self.phase} at {self.engine}>"

    @property
    def unused_tokens(self) -> int:
        """Work that will not be done any more, now that the part ends."""
        if self.usage is None:
            return self.work_tokens
        return self.work_tokens - self.usage.prompt_tokens - self.usage.completion_tokens

    @property
    def is_shown(self) -> bool:
        """Whether the client has seen some of this attempt, so that it cannot be begun again unseen."""
        return self.is_live and self.has_begun

    def take(self, delta: Delta) -> None:
        """Take the next delta: text goes straight out, what may change the call's state goes to `calls.py`."""
        if self._is_fast and delta.finish is None and delta.extra is None:
            self._emit(delta, self.first_choice + delta.choice)
        else:
            self._notice(self, delta)

    def show(self, delta: Delta) -> None:
        """Pass a delta on, or hold it back until the answer may begin."""
        if self.is_live:
            self._emit(delta, self.first_choice + delta.choice)
            self._is_fast = True
        else:
            self.held.append(delta)

    def go_live(self) -> None:
        """Pass on what was held, and hold nothing back from now on."""
        self.is_live = True
        self._is_fast = self.has_begun
        self.release()

    def release(self) -> None:
        """Pass on what was held."""
        for delta in self.held:
            self._emit(delta, self.first_choice + delta.choice)
        self.held.clear()

    def begin_attempt(self, engine: EngineId, stream: StreamNo, *, now: float) -> None:
        """Note where the part is being placed."""
        self.attempts += 1
        self.engine = engine
        self.stream = stream
        self.placed_at = now

    def end_attempt(self) -> None:
        """Forget the engine; what it sent stays."""
        self.engine = None
        self.stream = None
        self._is_fast = False

    def restart(self) -> None:
        """Forget what an engine sent and nobody saw, so that another can begin anew."""
        self.has_begun = False
        self.held.clear()

    def advance(self, event: PartEvent) -> None:
        """Change the phase. Raises `IllegalTransition`."""
        self.phase = PART_LIFE.next(self.phase, event)


class RunningCall:
    """One request of a client, from its arrival to its end."""

    __slots__ = (
        "call",
        "caller",
        "deadline",
        "first_at",
        "outlet",
        "parts",
        "phase",
        "priority",
        "request",
        "ticket",
        "timer",
    )

    def __init__(
        self,
        call: Call,
        caller: Caller,
        outlet: Outlet,
        *,
        ticket: Ticket,
        priority: Priority,
        deadline: float,
    ) -> None:
        self.call = call
        self.caller = caller
        self.outlet = outlet
        self.request = new_request_id(PREFIX[call.kind])
        self.ticket = ticket
        self.priority = priority
        self.deadline = deadline
        self.phase = CallPhase.WAITING
        self.parts: list[Part] = []
        self.timer: asyncio.TimerHandle | None = None
        self.first_at: float | None = None
        """Loop time of the first delta."""

    @override
    def __repr__(self) -> str:
        return f"<RunningCall {self.request} {self.phase}>"

    @property
    def is_over(self) -> bool:
        """Whether the client has had its end."""
        return self.phase is CallPhase.OVER

    @property
    def choices(self) -> int:
        """Choices over all prompts."""
        return len(self.call.prompts) * self.call.sampling.n

    def advance(self, event: CallEvent) -> None:
        """Change the phase. Raises `IllegalTransition`."""
        self.phase = CALL_LIFE.next(self.phase, event)
