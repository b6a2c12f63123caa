"""Brings parts to engines and away from them: routing, the submit and its reply, the cancel, and the books about all that."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from services.gateway import refusals
from services.gateway.call import ApiError
from services.gateway.continuation import Way
from services.gateway.ledger.stamps import Stay
from services.gateway.openai.models import model_not_found
from services.gateway.refusals import Setback
from services.gateway.routing import Route, RouteFacts, Router
from services.gateway.rules import Rules
from services.gateway.running import Part
from services.gateway.said import priors
from services.gateway.streams import StreamTable
from shared.bus import Bus
from shared.clock import loop_clock, stamp_clock
from shared.errors import BusError, RequestTimeout
from shared.ids import EngineId, GatewayId, ServiceName, StreamNo
from shared.messages import Accepted, Cancel, Chain, EngineHeartbeat, Message, Refused, Submit
from shared.prefixes import chain_of, salt_of, unpacked

OnSubmitted = Callable[[Part, Setback | None], None]
"""Called with a part, and with why its engine does not take it; None where it does."""


class Engines(Protocol):
    """What placing needs to know of the fleet."""

    @property
    def gateways(self) -> int:
        """Gateways that share the engines, this one included."""
        ...

    @property
    def services(self) -> Collection[str]:
        """Services that have or had engines."""
        ...

    def beats(self, service: str) -> Sequence[EngineHeartbeat]:
        """Return the last heartbeats of the engines of a service that are alive."""
        ...

    def beat_of(self, service: str, engine: EngineId) -> EngineHeartbeat | None:
        """Return the last heartbeat of an engine; none where it is not alive."""
        ...


class Own(NamedTuple):
    """What this gateway knows of itself."""

    gateway: GatewayId
    boot: str
    """Of this host's kernel; engines of the same one share our clock. Empty: not known."""
    rules: Rules
    """Who may reuse whose computed prefixes, among others."""


class Placement:
    """Parts at engines. Every stream that is opened here is closed here, and every submit counted once in and once out."""

    def __init__(
        self,
        bus: Bus,
        engines: Engines,
        router: Router,
        table: StreamTable,
        *,
        own: Own,
        submit_timeout_s: float,
    ) -> None:
        self._bus = bus
        self._engines = engines
        self._gateway = own.gateway
        self._boot = own.boot
        self._rules = own.rules
        self._router = router
        self._book = router.book
        self._table = table
        self._submit_timeout_s = submit_timeout_s
        self._clock = loop_clock()
        self._stamp = stamp_clock()
        self._at: dict[EngineId, set[Part]] = {}
        self._by_stream: dict[StreamNo, Part] = {}

    def unknown(self, service: str) -> ApiError | None:
        """Return what a client is told where no engine of the service was ever seen."""
        known = self._engines.services
        if service in known:
            return None
        return model_not_found(service) if known else refusals.no_engine_yet()

    def route(self, part: Part) -> Route:
        """Choose an engine for a part; where none could resume its answer, the part is replayed."""
        beats = self._engines.beats(part.call.call.model)
        if part.way is Way.RESUME:
            able = [beat for beat in beats if beat.resumes]
            if beats and not able:
                # Not while nobody is there: who comes may well resume.
                part.way = Way.REPLAY
            else:
                beats = able
        chain = self._chain(part)
        facts = RouteFacts(
            service=part.call.call.model,
            work_tokens=part.work_tokens,
            tried=frozenset(part.tried),
            chain=chain,
            pieces=() if chain is None else unpacked(chain.hashes),
            prompt_bytes=part.call.call.prompt_bytes // len(part.call.call.prompts),
        )
        part.stays.route = self._router.choose(
            beats,
            facts,
            now=self._clock(),
            gateways=self._engines.gateways,
        )
        return part.stays.route

    def submit(self, part: Part, engine: EngineId, on_answer: OnSubmitted) -> None:
        """Ask an engine to take a part; `on_answer` is told whether it does.

        It is not told where the part has meanwhile been closed or moved: then this attempt is nobody's concern any more.
        """
        stream = self._enter(part, engine)

        def settle(reply: Message | BusError) -> None:
            if part.stream != stream:
                if isinstance(reply, Accepted):
                    self._cancel(engine, stream)
            elif isinstance(reply, BusError):
                on_answer(part, self._not_reached(reply))
            elif isinstance(reply, Refused):
                on_answer(part, refusals.refused(reply))
            else:
                assert isinstance(reply, Accepted)
                self._table.started(stream)
                self._accepted(part, stream, reply)
                on_answer(part, None)

        try:
            self._bus.ask(
                self._message(part, engine, stream),
                timeout_s=self._patience_s(part),
                on_answer=settle,
            )
        except BusError as error:
            settle(error)

    def begun(self, part: Part) -> None:
        """Note the first delta of a part at its engine."""
        if part.stream is not None and part.engine is not None:
            self._book.account(part.engine).begun(part.stream)

    def leave(self, part: Part, *, cancel: bool, blame: float = 0.0) -> None:
        """Close the stream of a part, if it has one, and settle the books."""
        stream, engine = part.stream, part.engine
        if stream is None or engine is None:
            return
        now = self._clock()
        account = self._book.account(engine)
        account.ended(stream, unused_tokens=part.unused_tokens)
        if blame:
            account.penalty.add(now=now, weight=blame)
        self._table.close(stream, now=now, is_early=cancel)
        del self._by_stream[stream]
        at = self._at[engine]
        at.discard(part)
        if not at:
            del self._at[engine]
        part.end_attempt()
        if cancel:
            self._cancel(engine, stream)

    def _chain(self, part: Part) -> Chain | None:
        """Return what the prompt of a part begins with, made when it is first needed."""
        if part.stays.chain is None and self._router.uses_warmth:
            call = part.call
            kept_apart = self._rules.salt(call.caller.prefix_salt, call.call.model)
            part.stays.chain = chain_of(part.prompt, salt_of(kept_apart, call.call.model))
        return part.stays.chain

    def parts_at(self, engine: EngineId) -> list[Part]:
        """Return the parts that an engine has or is asked to take."""
        return list(self._at.get(engine, ()))

    def part_of(self, stream: StreamNo) -> Part | None:
        """Return the part whose current stream this is."""
        return self._by_stream.get(stream)

    def _enter(self, part: Part, engine: EngineId) -> StreamNo:
        stream = self._table.open(engine, part.take)
        account = self._book.account(engine)
        beat = self._engines.beat_of(part.call.call.model, engine)
        is_same_clock = beat is not None and beat.boot == self._boot != ""
        stay = Stay(engine, beat, self._stamp(), "", is_same_clock, account.least_trip_us)
        saved_tokens, route = 0, part.stays.route
        if route is not None and route.engine == engine:
            stay.route, stay.expected_cached_tokens = route.reason, route.cached_tokens
            saved_tokens = route.saved_tokens
        part.begin_attempt(stream, stay)
        account.sent(
            stream,
            work_tokens=part.work_tokens,
            saved_tokens=saved_tokens,
            choices=part.call.call.sampling.n,
        )
        self._at.setdefault(engine, set()).add(part)
        self._by_stream[stream] = part
        return stream

    def _accepted(self, part: Part, stream: StreamNo, reply: Accepted) -> None:
        account = self._book.account(reply.engine)
        account.answered(stream)
        part.stays.taken(reply.prompt_tokens)
        stay = part.stays.present
        if stay is not None and not stay.is_same_clock:
            whole_us = int((self._stamp() - stay.submitted_at) * 1e6)
            stay.trip_us = account.trip(max(0, whole_us - reply.held_us))

    def _message(self, part: Part, engine: EngineId, stream: StreamNo) -> Submit:
        call = part.call
        return Submit(
            engine=engine,
            gateway=self._gateway,
            stream=stream,
            request=call.request,
            service=ServiceName(call.call.model),
            prompt=part.prompt,
            sampling=call.call.sampling,
            priority=call.priority,
            tenant=call.caller.tenant,
            deadline_s=max(0.0, call.deadline - self._clock()),
            trace=call.caller.trace.fields(),
            prior=priors(part.said) if part.way is Way.RESUME else (),
            prefix_salt=self._rules.salt(call.caller.prefix_salt, call.call.model),
            chain=part.stays.chain,
        )

    def _patience_s(self, part: Part) -> float:
        left_s = max(0.0, part.call.deadline - self._clock())
        return min(self._submit_timeout_s, left_s)

    def _not_reached(self, error: BusError) -> Setback:
        if isinstance(error, RequestTimeout) and not self._bus.is_answering:
            return refusals.bus_silent()
        return refusals.not_reached(error)

    def _cancel(self, engine: EngineId, stream: StreamNo) -> None:
        """Tell the engine. Where the bus cannot take it the first stray delta tells it again."""
        try:
            self._bus.publish(Cancel(engine=engine, gateway=self._gateway, stream=stream))
        except BusError:
            return
