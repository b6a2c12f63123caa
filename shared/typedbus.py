"""The typed bus over any wire: codec, subjects, requests, served calls, dead letters. Memory and NATS bus differ only in their wire.

The one place where exceptions of handlers end: a fault in one message never ends a subscription.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from typing_extensions import override

from shared import logs
from shared.bus import Handler, OnAnswer, Server, Subscription
from shared.codec import decode, decode_reply, encode, tag_of
from shared.errors import (
    BusClosed,
    BusError,
    HeadraceError,
    NoResponder,
    RemoteBusy,
    RemoteFailed,
    RequestTimeout,
    Undecodable,
)
from shared.messages import DEAD_LETTER_SUBJECT, ROUTES, Delivery, Message
from shared.quiet import Quiet
from shared.subjects import SubjectOf, check_subject, fill, pattern, subject_of
from shared.wire import NO_RESPONDERS_STATUS, STATUS_HEADER, Listening, Receive, Wire

M = TypeVar("M", bound=Message)

ERROR_CODE_HEADER = "Nats-Service-Error-Code"
ERROR_HEADER = "Nats-Service-Error"
"""The two headers by which NATS services answer with an error."""
BUSY, UNDECODABLE, FAILED = "429", "400", "500"
DEAD_SUBJECT_HEADER = "Hr-Subject"
DEAD_REASON_HEADER = "Hr-Reason"
MAX_REASON_CHARS = 500

LossListener = Callable[[str], None]

_subjects: dict[type[Message], SubjectOf] = {kind: subject_of(kind) for kind in ROUTES}
_requested = frozenset(kind for kind, route in ROUTES.items() if route.delivery is Delivery.REQUEST)


class TypedBus:
    """`shared.bus.Bus` over a wire. `group` owns the running calls; the wire is closed with the bus."""

    def __init__(self, wire: Wire, *, group: asyncio.TaskGroup, name: str) -> None:
        self._wire = wire
        self._group = group
        self._log = logs.get("bus").bind(bus=name)
        self._quiet = Quiet(asyncio.get_running_loop().time)
        self._dead_subject = fill(DEAD_LETTER_SUBJECT, {"service": name})
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._listening: set[Listening] = set()
        self._calls: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count()
        self._waiting: dict[str, _Question] = {}
        self._inbox = ""
        self._loss_listeners: list[LossListener] = []
        self.counts = wire.counts

    @override
    def __repr__(self) -> str:
        state = "closed" if self._closing else "up" if self._wire.is_connected else "down"
        return f"<{type(self).__name__} {state} subscriptions={len(self._listening)} calls={len(self._calls)}>"

    async def open(self) -> None:
        """Listen for replies; before it no request can be made."""
        self._inbox = self._wire.new_inbox() + "."
        await self._wire.listen(self._inbox + "*", self._on_reply)

    def publish(self, message: Message) -> None:
        """See `Bus.publish`. Raises also `TooBig`."""
        self._wire.send(_subjects[type(message)](message), encode(message))

    async def request(self, message: Message, *, timeout_s: float) -> Message:
        """See `Bus.request`. Raises also `RemoteBusy`, `BusFull`, `TooBig` and, for a reply that is none, `Undecodable`."""
        future: asyncio.Future[Message] = self._loop.create_future()

        def settle(answer: Message | BusError) -> None:
            if future.done():
                return
            if isinstance(answer, BusError):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        number = self._ask(message, timeout_s, settle)
        try:
            return await future
        finally:
            self._take_question(number)

    def ask(self, message: Message, *, timeout_s: float, on_answer: OnAnswer) -> None:
        """See `Bus.ask`."""
        self._ask(message, timeout_s, on_answer)

    def _ask(self, message: Message, timeout_s: float, on_answer: OnAnswer) -> str:
        """Send a question; return its number, under which it waits."""
        kind = type(message)
        if kind not in _requested:
            raise TypeError(f"{kind.__name__} is published, not requested")
        subject, payload = _subjects[kind](message), encode(message)
        number = str(next(self._numbers))
        question = self._waiting[number] = _Question(kind, on_answer)
        try:
            self._wire.send(subject, payload, reply=self._inbox + number, wanted=question)
        except Exception:
            del self._waiting[number]
            raise
        question.timer = self._loop.call_later(timeout_s, self._give_up, number, timeout_s)
        return number

    def _give_up(self, number: str, timeout_s: float) -> None:
        question = self._take_question(number)
        if question is not None:
            late = f"no reply to {question.kind.__name__} within {timeout_s:g} s"
            self._answer_question(question, RequestTimeout(late))

    def _take_question(self, number: str) -> _Question | None:
        """Let a question wait no more; None where it does not."""
        question = self._waiting.pop(number, None)
        if question is not None:
            question.is_over = True
            if question.timer is not None:
                question.timer.cancel()
        return question

    def _answer_question(self, question: _Question, answer: Message | BusError) -> None:
        try:
            question.on_answer(answer)
        except Exception as error:  # noqa: BLE001 - one bad answer must not end the subscription of all
            self._report_failure(question.kind, error)

    async def subscribe(
        self, kind: type[M], handler: Handler[M], *, queue: str = "", **keys: str
    ) -> Subscription:
        """See `Bus.subscribe`."""
        if inspect.iscoroutinefunction(handler):
            raise TypeError(f"the handler of {kind.__name__} must be synchronous")

        def receive(
            subject: str, payload: bytes, reply: str, headers: Mapping[str, str] | None
        ) -> None:
            try:
                handler(self._read(kind, subject, payload))
            except Undecodable as error:
                self._park(subject, payload, error)
            except Exception as error:  # noqa: BLE001 - one bad message must not end the subscription
                self._report_failure(kind, error)

        return await self._listen(pattern(kind, keys), receive, queue)

    async def serve(
        self, kind: type[M], server: Server[M], *, max_pending: int = 1024, **keys: str
    ) -> Subscription:
        """See `Bus.serve`."""
        running = 0

        async def answer(message: M, reply: str) -> None:
            nonlocal running
            try:
                await self._answer(kind, server(message), reply)
            finally:
                running -= 1

        def receive(
            subject: str, payload: bytes, reply: str, headers: Mapping[str, str] | None
        ) -> None:
            nonlocal running
            try:
                message = self._read(kind, subject, payload)
            except Undecodable as error:
                self._park(subject, payload, error)
                self._refuse(reply, UNDECODABLE, str(error))
                return
            if running >= max_pending:
                self.counts.refused += 1
                self._refuse(reply, BUSY, f"{max_pending} calls of {kind.__name__} are under way")
                return
            if self._spawn(answer(message, reply)):
                running += 1
            else:
                self._refuse(reply, BUSY, "the service is stopping")

        return await self._listen(pattern(kind, keys), receive, "")

    def on_loss(self, listener: LossListener) -> None:
        """Call `listener` with a reason whenever messages to this bus may have been lost: a slow reader, a reconnect."""
        self._loss_listeners.append(listener)

    def report_loss(self, reason: str) -> None:
        """Tell the loss listeners; for the wire."""
        self.counts.losses += 1
        if times := self._quiet.due(reason):
            self._log.warning("bus_messages_lost", reason=reason, times=times)
        for listener in self._loss_listeners:
            listener(reason)

    async def flush(self, *, timeout_s: float) -> None:
        """See `Bus.flush`."""
        await self._wire.flush(timeout_s=timeout_s)

    @property
    def is_connected(self) -> bool:
        """See `Bus.is_connected`."""
        return self._wire.is_connected

    @property
    def is_answering(self) -> bool:
        """See `Bus.is_answering`."""
        return self._wire.is_answering

    @property
    def max_payload(self) -> int:
        """Largest message in bytes that can be sent."""
        return self._wire.max_payload

    @property
    def wire(self) -> Wire:
        """The wire below, for adapters that speak to other people's NATS programs."""
        return self._wire

    async def close(self, *, drain_s: float = 2.0) -> None:
        """See `Bus.close`. Served calls that run get the same time to finish; then they are cancelled."""
        if self._closing:
            return
        self._closing = True
        try:
            async with asyncio.timeout(drain_s):
                for listening in tuple(self._listening):
                    await listening.drain()
                if self._calls:
                    await asyncio.wait(self._calls)
                await self._wire.flush(timeout_s=drain_s)
        except (TimeoutError, BusError):
            self._log.warning("bus_closed_undrained", drain_s=drain_s, calls=len(self._calls))
        finally:
            await self._end()

    async def _end(self) -> None:
        for call in self._calls:
            call.cancel()
        for number in list(self._waiting):
            question = self._take_question(number)
            if question is not None:
                closed = f"closed while waiting for {question.kind.__name__}"
                self._answer_question(question, BusClosed(closed))
        await self._wire.close()

    async def _listen(self, subject: str, receive: Receive, queue: str) -> Subscription:
        if self._closing:
            raise BusClosed("the bus is closed")
        listening = await self._wire.listen(subject, receive, queue=queue)
        self._listening.add(listening)
        return _Subscription(listening, self._listening)

    def _read(self, kind: type[M], subject: str, payload: bytes) -> M:
        """Return the message; its ids are those of the subject, on which its sender may send. Raises `Undecodable`."""
        message = decode(kind, payload)
        check_subject(message, subject)
        return message

    def _spawn(self, call: Awaitable[None]) -> bool:
        assert inspect.iscoroutine(call)
        try:
            task = self._group.create_task(call)
        except RuntimeError:  # the group is ending
            call.close()
            return False
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return True

    async def _answer(self, kind: type[Message], call: Awaitable[Message], reply: str) -> None:
        try:
            payload = encode(_checked_reply(kind, await call))
            if reply:
                self._wire.send(reply, payload)
        except Exception as error:  # noqa: BLE001 - the caller is told, the service lives on
            self._report_failure(kind, error)
            known = isinstance(error, HeadraceError)
            self._refuse(reply, FAILED, str(error) if known else f"{type(error).__name__}: {error}")

    def _refuse(self, reply: str, code: str, reason: str) -> None:
        if not reply:
            return
        headers = {ERROR_CODE_HEADER: code, ERROR_HEADER: _one_line(reason)}
        try:
            self._wire.send(reply, b"", headers=headers)
        except BusError:
            self._log.debug("bus_refusal_unsent", code=code)

    def _on_reply(
        self, subject: str, payload: bytes, _: str, headers: Mapping[str, str] | None
    ) -> None:
        question = self._take_question(subject[len(self._inbox) :])
        if question is None:
            return
        answer: Message | BusError | None = _error_of(question.kind, headers) if headers else None
        if answer is None:
            try:
                answer = decode_reply(question.kind, payload)
            except Undecodable as error:
                answer = error
        self._answer_question(question, answer)

    def _park(self, subject: str, payload: bytes, error: Undecodable) -> None:
        self.counts.undecodable += 1
        if times := self._quiet.due(subject):
            self._log.warning(
                "bus_message_undecodable", subject=subject, reason=str(error), times=times
            )
        headers = {DEAD_SUBJECT_HEADER: subject, DEAD_REASON_HEADER: _one_line(str(error))}
        try:
            self._wire.send(self._dead_subject, payload, headers=headers)
        except BusError:
            self._log.debug("bus_dead_letter_unsent", subject=subject)

    def _report_failure(self, kind: type[Message], error: Exception) -> None:
        self.counts.handler_errors += 1
        if times := self._quiet.due(f"{kind.__name__} {type(error).__name__}"):
            tag = tag_of(kind)
            self._log.error("bus_handler_failed", message=tag, times=times, exc_info=error)


class _Question:
    """A request whose answer has not come."""

    __slots__ = ("is_over", "kind", "on_answer", "timer")

    def __init__(self, kind: type[Message], on_answer: OnAnswer) -> None:
        self.kind = kind
        self.on_answer = on_answer
        self.timer: asyncio.TimerHandle | None = None
        self.is_over = False

    def done(self) -> bool:
        """See `Wanted`."""
        return self.is_over


class _Subscription:
    """Handle of one interest; leaves the bus's set when closed."""

    def __init__(self, listening: Listening, all_listening: set[Listening]) -> None:
        self._listening = listening
        self._all = all_listening

    async def close(self) -> None:
        """See `Subscription.close`."""
        self._all.discard(self._listening)
        await self._listening.close()


def _checked_reply(request: type[Message], reply: Message) -> Message:
    if type(reply) not in ROUTES[request].replies:
        raise TypeError(f"{type(reply).__name__} is no reply to {request.__name__}")
    return reply


def _one_line(text: str) -> str:
    return " ".join(text.split())[:MAX_REASON_CHARS]


def _error_of(kind: type[Message], headers: Mapping[str, str]) -> BusError | None:
    """Return the error that reply headers stand for, if any."""
    if headers.get(STATUS_HEADER) == NO_RESPONDERS_STATUS:
        return NoResponder(f"nobody answers {kind.__name__}")
    code = headers.get(ERROR_CODE_HEADER)
    if code is None:
        return None
    reason = headers.get(ERROR_HEADER, "")
    return RemoteBusy(reason) if code == BUSY else RemoteFailed(reason)
