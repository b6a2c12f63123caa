"""A call under way and its parts: values that `calls.py` changes, and the hot path from a delta to the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from typing_extensions import override

from services.gateway.admission.verdict import Ticket
from services.gateway.call import ApiError, Call
from services.gateway.continuation import Replay, Way, is_exact, ways_of
from services.gateway.ledger.stamps import NEVER, Stay, Stays
from services.gateway.openai.answer import chars_of
from services.gateway.outlet import Caller, Outlet
from services.gateway.phases import (
    CALL_LIFE,
    PART_LIFE,
    CallEvent,
    CallPhase,
    PartEvent,
    PartPhase,
)
from services.gateway.refusals import Setback
from services.gateway.said import Said
from shared.ids import EngineId, StreamNo
from shared.messages import Delta, Priority, Prompt, Usage


class Part:
    """One prompt of a call. Its `take` is the sink of its stream."""

    __slots__ = (
        "_emit",
        "_is_fast",
        "_is_seam_due",
        "_notice",
        "_replay",
        "attempts",
        "barred",
        "call",
        "engine",
        "first_choice",
        "has_begun",
        "held",
        "held_chars",
        "is_live",
        "last_error",
        "losses",
        "lost_at",
        "phase",
        "prior_tokens",
        "prompt",
        "said",
        "stays",
        "stream",
        "tried",
        "unheard",
        "usage",
        "way",
        "work_tokens",
    )

    def __init__(
        self,
        call: RunningCall,
        prompt: Prompt,
        *,
        first_choice: int,
        notice: Callable[[Part, Delta, float], None],
    ) -> None:
        self.call = call
        self.prompt = prompt
        self.first_choice = first_choice
        self.phase = PartPhase.PLACING
        self.attempts = 0
        """Engines tried in a row that said nothing."""
        self.losses = 0
        """Engines lost that had said something."""
        self.lost_at: float | None = None
        """When the last engine was lost, or turned the part down; of several in a row that were not there, the first."""
        self.tried: set[EngineId] = set()
        self.unheard: set[EngineId] = set()
        """Those of them that were not there; they may come back while the part waits."""
        self.engine: EngineId | None = None
        self.stream: StreamNo | None = None
        self.has_begun = False
        """The engine sent a delta in this attempt."""
        self.is_live = False
        """Deltas go to the client as they come; else they are held."""
        self.held: list[Delta] = []
        self.held_chars = 0
        self.said = self._nothing_said()
        """What the client has or is about to have, by choice."""
        self.way: Way | None = None
        """How the answer goes on in this attempt; none: from its beginning."""
        self.barred: set[Way] = set()
        """Ways that have failed."""
        self.prior_tokens = 0
        """Tokens of earlier attempts that the usage of this one does not count."""
        self.usage: Usage | None = None
        self.work_tokens = max(1, call.call.work_tokens // len(call.call.prompts))
        """This part's share of the call's estimated token work."""
        self.last_error: ApiError | None = None
        """What the last engine that was tried said."""
        self.stays = Stays()
        self._is_fast = False
        self._replay: Replay | None = None
        self._is_seam_due = False
        self._emit = call.outlet.delta
        self._notice = notice

    @override
    def __repr__(self) -> str:
        return f"<Part {self.call.request}/{self.first_choice} {self.phase} at {self.engine}>"

    @property
    def submitted_at(self) -> float:
        """When the present engine was asked, on the clock of stamps."""
        return NEVER if self.stays.present is None else self.stays.present.submitted_at

    @property
    def unused_tokens(self) -> int:
        """Work that will not be done any more, now that the part ends."""
        if self.usage is None:
            return self.work_tokens
        return self.work_tokens - self.usage.prompt_tokens - self.usage.completion_tokens

    def take(self, delta: Delta, now: float) -> None:
        """Take the next delta: text goes straight out, what may change the call's state goes to `calls.py`."""
        stays = self.stays
        if now - stays.last_at > stays.max_gap_s:  # noqa: PLR1730 - a call for each token would cost more
            stays.max_gap_s = now - stays.last_at
        stays.last_at = now
        if self._is_fast and delta.finish is None and delta.extra is None:
            self.said[delta.choice].add(delta)
            self._emit(delta, self.first_choice + delta.choice)
        else:
            self._notice(self, delta, now)

    def news(self, delta: Delta) -> Delta | None:
        """Return what of a delta the client does not have yet. Raises `DivergedError`."""
        if self._replay is None:
            return delta
        new = self._replay.news(delta)
        if self._replay.is_caught_up:
            self._replay = None
        return new

    def show(self, delta: Delta) -> None:
        """Pass a delta on, or hold it back until the answer may begin."""
        self.said[delta.choice].add(delta)
        if self.is_live:
            self._tell_seam()
            self._emit(delta, self.first_choice + delta.choice)
            self._is_fast = self._replay is None
        else:
            self.held.append(delta)
            self.held_chars += chars_of(delta)

    def go_live(self) -> None:
        """Pass on what was held, and hold nothing back from now on."""
        self.is_live = True
        self._is_fast = self.has_begun and self._replay is None
        self.release()

    def release(self) -> None:
        """Pass on what was held."""
        if self.held:
            self._tell_seam()
        for delta in self.held:
            self._emit(delta, self.first_choice + delta.choice)
        self.held.clear()
        self.held_chars = 0

    def begin_attempt(self, stream: StreamNo, stay: Stay) -> None:
        """Note where the part is being placed."""
        self.attempts += 1
        self.engine = stay.engine
        self.stream = stream
        self.stays.present = stay
        if self.way is not None:
            stay.way = self.way
        self._replay = Replay(self.said) if self.way is Way.REPLAY else None
        self.prior_tokens = 0
        if self.way is Way.RESUME:
            self.prior_tokens = sum(len(said.token_ids) for said in self.said)

    def hope(self) -> None:
        """Try again those that were not there."""
        self.tried -= self.unheard
        self.unheard.clear()

    def end_attempt(self) -> None:
        """Forget the engine; what it sent stays."""
        self.stays.leave()
        self.engine = None
        self.stream = None
        self._is_fast = False

    def go_on(self, setback: Setback, *, now: float) -> bool:
        """Get ready for another engine; return whether there is a way to go on."""
        was_lost = self.has_begun or setback.is_unheard or setback.blame > 0
        if was_lost and (self.lost_at is None or not setback.is_unheard):
            self.lost_at = now
        if setback.is_unheard:
            self.attempts -= 1
        if self.has_begun:
            self.losses += 1
            self.attempts = 0
            self.tried.clear()
            self.unheard.clear()
        self.has_begun = False
        if all(said.is_empty for said in self.said):
            return True
        ways = ways_of(self.call.call, self.prompt, self.said)
        self.way = next((way for way in ways if way not in self.barred), None)
        if self.way is Way.REPLAY and not self.is_live:
            # Nobody has seen any of it.
            self.way = None
            self.held.clear()
            self.held_chars = 0
            self.said = self._nothing_said()
            return True
        self._is_seam_due = self.way is not None
        return self.way is not None

    def finish(self, usage: Usage) -> None:
        """Take the usage of the attempt that came to an end."""
        self.usage = Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens + self.prior_tokens,
            cached_tokens=usage.cached_tokens,
        )

    def _tell_seam(self) -> None:
        """Tell the client once that another engine goes on, where it does."""
        if self._is_seam_due and self.way is not None:
            self._is_seam_due = False
            exact = is_exact(self.call.call, self.way)
            self.call.outlet.continued(self.first_choice, is_exact=exact)

    def _nothing_said(self) -> list[Said]:
        return [Said() for _ in range(self.call.call.sampling.n)]

    def advance(self, event: PartEvent) -> None:
        """Change the phase. Raises `IllegalTransition`."""
        self.phase = PART_LIFE.next(self.phase, event)


class RunningCall:
    """One request of a client, from its arrival to its end."""

    __slots__ = (
        "admitted_at",
        "call",
        "caller",
        "deadline",
        "first_at",
        "offered_at",
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
        self.request = caller.request
        self.ticket = ticket
        self.priority = priority
        self.deadline = deadline
        self.phase = CallPhase.WAITING
        self.parts: list[Part] = []
        self.timer: asyncio.TimerHandle | None = None
        self.first_at: float | None = None
        """Arrival of the first delta; this and those below are on the clock of stamps."""
        self.offered_at = NEVER
        """When it was parsed and offered to the gate."""
        self.admitted_at = NEVER
        """When the gate let it in."""

    @override
    def __repr__(self) -> str:
        return f"<RunningCall {self.request} {self.phase}>"

    @property
    def is_over(self) -> bool:
        """Whether the client has had its end."""
        return self.phase is CallPhase.OVER

    def too_large(self) -> ApiError | None:
        """Return why the answer that is being held cannot be sent any more."""
        return self.outlet.too_large(sum(part.held_chars for part in self.parts))

    @property
    def choices(self) -> int:
        """Choices over all prompts."""
        return len(self.call.prompts) * self.call.sampling.n

    def advance(self, event: CallEvent) -> None:
        """Change the phase. Raises `IllegalTransition`."""
        self.phase = CALL_LIFE.next(self.phase, event)
