"""Runs calls from their arrival to exactly one end: gate, engine, deltas, end; has another engine go on where one is lost.

Every event is handled in one synchronous step. Whatever happens (client gone, deadline, engine lost, a fault of ours), `_end` closes the
streams, cancels at the engines, gives back the place at the gate and opens the request's record in the ledger.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

import msgspec

from services.gateway import refusals
from services.gateway.admission.verdict import Offer, Ticket, Verdict
from services.gateway.call import ApiError, Call
from services.gateway.capture import CaptureRing
from services.gateway.continuation import DivergedError
from services.gateway.gates import Gates
from services.gateway.json_watch import watched
from services.gateway.ledger.book import LedgerBook, Record
from services.gateway.observer import CallObserver
from services.gateway.openai.ending import failure_of, total_usage
from services.gateway.outlet import Caller, Outlet
from services.gateway.phases import CallEvent, CallPhase, PartEvent, PartPhase
from services.gateway.placement import Placement
from services.gateway.refusals import Setback
from services.gateway.running import Part, RunningCall
from shared import logs
from shared.clock import Clock
from shared.ids import EngineId
from shared.messages import Delta, Finish, Outcome

SERVER_FAULT = 500
"""HTTP's statuses from here on say that the request was right."""
WAIT_S = 0.2
"""Between two looks for an engine where none is there."""


class CallSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Deadlines and attempts of a call."""

    default_timeout_s: float = 600.0
    """Deadline of a whole answer where the caller names none (`X-Request-Timeout`, `Hr-Timeout`)."""
    first_token_timeout_s: float = 120.0
    """An engine that took a prompt and sent nothing for this long is given up; another one is tried."""
    submit_timeout_s: float = 5.0
    """An engine that has not answered a submit after this is tried no longer; rendering a template may take a second or two."""
    max_attempts: int = 3
    """Engines in a row that may fail a prompt before their first word."""
    max_losses: int = 5
    """Engines that may be lost under one prompt after they said something: it may be the prompt that kills them."""
    replacement_s: float = 5.0
    """Where no other engine is there, one is waited for so long after the loss."""


class Calls:
    """All calls under way."""

    def __init__(
        self,
        placement: Placement,
        gates: Gates,
        observer: CallObserver,
        ledgers: LedgerBook,
        *,
        settings: CallSettings,
        clock: Clock,
    ) -> None:
        self._placement = placement
        self._gates = gates
        self._observer = observer
        self._ledgers = ledgers
        self._stamp = ledgers.stamp
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._log = logs.get("calls")
        self.captures = CaptureRing()
        self._open: dict[Ticket, RunningCall] = {}
        self._silent: set[Part] = set()
        """Parts at engines that have sent nothing yet."""
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._open)

    def start(self, call: Call, caller: Caller, outlet: Outlet) -> RunningCall:
        """Begin a call; it may be over on return."""
        now = self._clock()
        self.captures.take(call.model, caller.request, caller.label, call.prompts, now=now)
        timeout_s = call.timeout_s
        running = RunningCall(
            call,
            caller,
            watched(call, outlet, self._observer.json_broken),
            ticket=self._gates.next_ticket(),
            priority=self._gates.class_of(
                caller.tenant, call.priority, timeout_s=timeout_s, now=now
            ),
            deadline=now + (self._settings.default_timeout_s if timeout_s is None else timeout_s),
        )
        n = call.sampling.n
        running.parts = [
            Part(running, prompt, first_choice=index * n, notice=self._on_special)
            for index, prompt in enumerate(call.prompts)
        ]
        running.offered_at = self._stamp()
        self._open[running.ticket] = running
        self._idle.clear()
        running.timer = self._loop.call_at(running.deadline, self._on_deadline, running)
        unknown = self._placement.unknown(call.model)
        if unknown is None:
            self.deliver(self._gates.offer(call.model, self._offer(running), now=now))
        else:
            is_clients = unknown.status < SERVER_FAULT
            self._end(running, Outcome.INVALID if is_clients else Outcome.REFUSED, unknown)
        return running

    def leave(self, running: RunningCall) -> None:
        """The client is gone: stop everything at once. A second call changes nothing."""
        self._end(running, Outcome.LEFT, None)

    def fail(self, running: RunningCall, error: ApiError) -> None:
        """The answer cannot leave by its door. A second call changes nothing."""
        self._end(running, Outcome.FAILED, error)

    def deliver(self, verdicts: Iterable[Verdict]) -> None:
        """Carry out what a gate decided."""
        for verdict in verdicts:
            running = self._open.get(verdict.ticket)
            if running is None:
                continue
            if verdict.is_admitted:
                running.advance(CallEvent.ADMIT)
                running.admitted_at = self._stamp()
                self._observer.admitted(running, verdict.waited_s)
                for part in running.parts:
                    self._place(part)
            elif verdict.is_refused:
                self._end(running, Outcome.REFUSED, refusals.not_admitted(verdict))

    def set_back(self, part: Part, setback: Setback) -> None:
        """A running part is lost to its engine: another one goes on with it."""
        if part.phase is not PartPhase.DONE and self._may_retry(part, setback):
            self._place(part)

    def engine_lost(self, engine: EngineId, why: str) -> None:
        """Act on the loss of an engine; `why` is a verb phrase such as `is gone`."""
        for part in self._placement.parts_at(engine):
            self.set_back(part, refusals.engine_lost(why))

    def tick(self) -> None:
        """Give up engines that have been silent for too long about a part, and let the gates look at their clocks."""
        self.deliver(self._gates.tick(now=self._clock()))
        too_old = self._stamp() - self._settings.first_token_timeout_s
        for part in [part for part in self._silent if part.submitted_at <= too_old]:
            self.set_back(part, refusals.engine_lost("sent nothing for too long"))

    async def until_idle(self, *, timeout_s: float) -> None:
        """Return when no call is open, or when the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()

    def stop(self) -> None:
        """End all calls that are still open."""
        for running in list(self._open.values()):
            self._end(running, Outcome.STOPPED, refusals.stopping())

    def _offer(self, running: RunningCall) -> Offer:
        return Offer(
            ticket=running.ticket,
            tenant=running.caller.tenant,
            priority=running.priority,
            choices=running.choices,
            prompt_bytes=running.call.prompt_bytes,
            work_tokens=running.call.work_tokens,
            deadline=running.deadline,
        )

    def _place(self, part: Part) -> None:
        """Have an engine found in the next step: the end of one call lets others in, and they must not pile up on the stack."""
        self._loop.call_soon(self._find_engine, part)

    def _find_engine(self, part: Part) -> None:
        """Ask the next engine to take the part, or end the call where nobody is left."""
        if part.phase is not PartPhase.PLACING or part.stream is not None:
            return
        try:
            route = self._placement.route(part)
            if route.engine is not None:
                self._placement.submit(part, route.engine, self._on_submitted)
            elif self._may_wait(part):
                self._loop.call_later(WAIT_S, self._find_again, part)
            else:
                error = part.last_error or refusals.no_route(route.reason, part.call.call.model)
                self._end(part.call, Outcome.FAILED, error)
        except Exception as error:  # noqa: BLE001 - a fault in one call must not end all others
            self._break(part, error)

    def _find_again(self, part: Part) -> None:
        part.hope()
        self._find_engine(part)

    def _on_submitted(self, part: Part, setback: Setback | None) -> None:
        try:
            if setback is None:
                self._on_taken(part)
            elif self._may_retry(part, setback):
                self._place(part)
        except Exception as error:  # noqa: BLE001 - as above
            self._break(part, error)

    def _break(self, part: Part, error: Exception) -> None:
        self._log.error("call_broke", request=part.call.request, exc_info=error)
        self._end(part.call, Outcome.FAILED, refusals.internal())

    def _may_wait(self, part: Part) -> bool:
        """Return whether an engine may yet come for a part that lost its own."""
        if part.lost_at is None:
            return False
        return self._clock() - part.lost_at < self._settings.replacement_s

    def _may_retry(self, part: Part, setback: Setback) -> bool:
        """Take the part from its engine; return whether another one may be tried, else end the call."""
        engine, way = part.engine, part.way
        self._placement.leave(part, cancel=setback.may_run, blame=setback.blame)
        self._silent.discard(part)
        is_clients = setback.is_final and way is None and setback.error.status < SERVER_FAULT
        if is_clients:
            self._end(part.call, Outcome.INVALID, setback.error)
            return False
        part.stays.give_up(setback.why, now=self._stamp())
        if setback.is_final and setback.error.status >= SERVER_FAULT:
            self._end(part.call, Outcome.FAILED, setback.error)
            return False
        bars_way = setback.is_final or setback.bars_way
        if bars_way:
            # Of a request that one engine took, no other can say that it is at fault: the way of going on is.
            assert way is not None
            part.barred.add(way)
        if not self._can_go_on(part, setback):
            self._end(part.call, Outcome.FAILED, refusals.broken_off(setback))
            return False
        part.advance(PartEvent.LOST)
        part.last_error = refusals.broken_off(setback)
        if engine is not None and not bars_way:  # else it may know another way
            part.tried.add(engine)
            if setback.is_unheard:
                part.unheard.add(engine)
        self._observer.retried(part, setback)
        return True

    def _can_go_on(self, part: Part, setback: Setback) -> bool:
        """Get the part ready for another engine; return whether its attempts are not used up."""
        return (
            part.go_on(setback, now=self._clock())
            and part.attempts < self._settings.max_attempts
            and part.losses <= self._settings.max_losses
        )

    def _on_taken(self, part: Part) -> None:
        """An engine has the part: by its reply or by a delta that overtook it."""
        if part.phase is PartPhase.RUNNING:
            return
        part.advance(PartEvent.TAKEN)
        part.lost_at = None
        if not part.has_begun:
            self._silent.add(part)
        running = part.call
        if running.phase is CallPhase.PLACING and all(
            p.phase is not PartPhase.PLACING for p in running.parts
        ):
            self._begin(running)

    def _begin(self, running: RunningCall) -> None:
        running.advance(CallEvent.BEGIN)
        running.outlet.begin(running.request)
        if running.outlet.is_streamed:
            for part in running.parts:
                if not running.is_over:
                    part.go_live()

    def _on_special(self, part: Part, delta: Delta, now: float) -> None:
        """Handle a delta that may change the state: the first, a finish, one with extras, or while deltas are held."""
        if not part.has_begun:
            self._on_first(part, now)
        if delta.extra is not None and delta.extra.spent is not None:
            part.stays.tell(delta.extra.spent, now)
        if part.phase is PartPhase.DONE:
            return
        if delta.finish is Finish.ERROR or delta.finish is Finish.TIMEOUT:
            self._on_bad_end(part, delta)
            return
        try:
            news = part.news(delta)
        except DivergedError as error:
            self.set_back(part, refusals.diverged(str(error)))
            return
        if news is not None:
            part.show(news)
        too_large = None if part.is_live else part.call.too_large()
        if too_large is not None:
            self._end(part.call, Outcome.FAILED, too_large)
            return
        if delta.extra is not None and delta.extra.usage is not None:
            part.finish(delta.extra.usage)
            self._placement.leave(part, cancel=False)
            part.advance(PartEvent.CLOSE)
            self._finish_if_done(part.call)

    def _on_first(self, part: Part, now: float) -> None:
        running = part.call
        part.has_begun = True
        part.stays.answered(now)
        self._placement.begun(part)
        self._silent.discard(part)
        if running.first_at is None:
            running.first_at = now
            self._observer.first_delta(running, now)
        self._on_taken(part)

    def _on_bad_end(self, part: Part, delta: Delta) -> None:
        """A choice ended badly. Of several, the one that ends the stream says why."""
        extra = delta.extra
        if delta.finish is Finish.TIMEOUT:
            self._end(part.call, Outcome.EXPIRED, refusals.expired())
        elif extra is not None and extra.error is not None:
            failure = failure_of(delta)
            assert failure is not None
            is_final = not extra.error.retryable
            self.set_back(
                part, Setback(error=failure, is_final=is_final, blame=0.0 if is_final else 1.0)
            )

    def _finish_if_done(self, running: RunningCall) -> None:
        usages = [part.usage for part in running.parts if part.usage is not None]
        if len(usages) < len(running.parts) or running.is_over:
            return
        for part in running.parts:
            part.release()
        if not running.is_over:
            record = self._conclude(running, Outcome.FINISHED, None)
            failure = running.outlet.finish(total_usage(usages), record.timing())
            if failure is not None:
                record.turn(failure)
            running.outlet.when_sent(record.close)

    def _on_deadline(self, running: RunningCall) -> None:
        if running.phase is CallPhase.WAITING:
            self.deliver(self._gates.tick(now=self._clock()))
        if not running.is_over:
            self._end(running, Outcome.EXPIRED, refusals.expired())

    def _end(self, running: RunningCall, outcome: Outcome, error: ApiError | None) -> None:
        """End a call that may be over already; then nothing changes."""
        if running.is_over:
            return
        record = self._conclude(running, outcome, error)
        if error is not None:
            running.outlet.fail(error, record.timing())
            running.outlet.when_sent(record.close)
        else:
            record.close()

    def _conclude(self, running: RunningCall, outcome: Outcome, error: ApiError | None) -> Record:
        """The one way out; the client has yet to be told."""
        running.advance(CallEvent.END)
        if running.timer is not None:
            running.timer.cancel()
        for part in running.parts:
            self._placement.leave(part, cancel=True)
            self._silent.discard(part)
            if part.phase is not PartPhase.DONE:
                part.advance(PartEvent.CLOSE)
        del self._open[running.ticket]
        if not self._open:
            self._idle.set()
        record = self._ledgers.ended(running, outcome, error)
        self._observer.ended(running, outcome, self._stamp())
        running.parts = []  # breaks the cycle, so that the call is freed at once
        self.deliver(self._gates.end(running.ticket, now=self._clock()))
        return record
