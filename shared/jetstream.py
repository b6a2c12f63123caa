"""Asking JetStream through the wire: streams are created, looked at and read the same way on the memory bus and on NATS.

`shared.history` (what was published) and `shared.records` (what holds now) are built on it. Needs NATS 2.11 (batched direct get).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple, Self

import msgspec

from shared import logs
from shared.errors import BusClosed, BusError, NoHistory, RequestTimeout
from shared.streams import (
    CREATE_SUBJECT,
    END_STATUS,
    GET_SUBJECT,
    NO_STREAM_CODE,
    NOT_FOUND_STATUS,
    PENDING_HEADER,
    PREVIOUS_HEADER,
    SEQUENCE_HEADER,
    UPDATE_SUBJECT,
    ApiError,
    GetRequest,
    StreamAnswer,
    StreamConfig,
)
from shared.typedbus import TypedBus
from shared.wire import STATUS_HEADER

API_S = 5.0
"""What the server gets to answer."""
LOOK_S = 60.0
"""Between two looks whether a stream is there, beside those after a reconnect."""
RETRY_S = 1.0
MAX_RETRY_S = 3600.0
"""A server without JetStream will hardly get it while it runs."""
FIRST_PAGE_MESSAGES = 64
PAGE_MESSAGES = 2048
PAGE_BYTES = 4 << 20
"""What travels at once: little at first, since most readers want the newest, then more each time.

Far below what a subscription may hold unread.
"""

_encode = msgspec.json.Encoder().encode
_answers = msgspec.json.Decoder(StreamAnswer)


class Reply(NamedTuple):
    """One message that answers a call."""

    headers: Mapping[str, str]
    payload: bytes

    @property
    def is_last(self) -> bool:
        """Whether nothing follows: only messages within a batch tell how many are pending."""
        return PENDING_HEADER not in self.headers or STATUS_HEADER in self.headers

    @property
    def status(self) -> str:
        """Status of an answer without content, else empty."""
        return self.headers.get(STATUS_HEADER, "")

    @property
    def seq(self) -> int:
        """Place in its stream."""
        return int(self.headers.get(SEQUENCE_HEADER, 0))


class _Call:
    """A call that is answered by one message or a batch of them."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.is_answered = asyncio.Event()
        self.is_over = False

    def done(self) -> bool:
        """See `Wanted`."""
        return self.is_over


class JetStream:
    """JetStream as one bus reaches it. Make it with `open`, once for each bus and use; it ends with the bus."""

    def __init__(self, bus: TypedBus, *, log: str) -> None:
        self._bus = bus
        self._log = logs.get(log)
        self._inbox = bus.wire.new_inbox() + "."
        self._numbers = itertools.count()
        self._calls: dict[str, _Call] = {}

    @classmethod
    async def open(cls, bus: TypedBus, *, log: str) -> Self:
        """Return JetStream as this bus reaches it; whether it is there is not asked yet. Raises `BusClosed`, `RequestTimeout`."""
        found = cls(bus, log=log)
        await bus.wire.listen(found._inbox + "*", found._on_reply)
        return found

    async def ensure(self, config: StreamConfig) -> None:
        """Create a stream, or give it these limits; what it holds stays. A second call changes nothing.

        Raises `NoHistory` with the server's reason, and `BusError` where nothing can be sent.
        """
        # Update first: a second create is refused where the server has no room for twice the stream.
        answer = await self.api(UPDATE_SUBJECT, config.name, _encode(config))
        if answer.error and answer.error.err_code == NO_STREAM_CODE:
            answer = await self.api(CREATE_SUBJECT, config.name, _encode(config))
        if answer.error:
            raise no_history(config.name, answer.error)

    async def keep(self, *configs: StreamConfig) -> None:
        """Run `ensure` now, after each reconnect and now and then, until the bus is closed: a restarted server may have forgotten.

        Where a stream cannot be had, one warning is logged, and it is tried again ever more seldom; nothing is raised.
        """
        again = asyncio.Event()
        self._bus.on_loss(lambda _: again.set())
        is_kept, wait_s = True, RETRY_S
        while True:
            again.clear()
            names = ", ".join(config.name for config in configs)
            try:
                for config in configs:
                    await self.ensure(config)
            except BusClosed:
                return
            except BusError as error:
                if is_kept:
                    self._log.warning("history_unavailable", stream=names, reason=str(error))
                is_kept, wait_s = False, min(2 * wait_s, MAX_RETRY_S)
            else:
                if not is_kept:
                    self._log.info("history_available", stream=names)
                is_kept, wait_s = True, RETRY_S
            await wait(again, LOOK_S if is_kept else wait_s)

    async def ask(
        self, subject: str, body: bytes, *, headers: dict[str, str] | None = None
    ) -> Reply:
        """Return the one reply to a message. Raises `RequestTimeout`, `BusError`."""
        return (await self._call(subject, body, headers=headers))[-1]

    async def get(self, name: str, request: GetRequest) -> list[Reply]:
        """Return messages of a stream; none where none is left. For `Pages`."""
        *replies, end = await self._call(GET_SUBJECT.format(stream=name), _encode(request))
        if end.status == NOT_FOUND_STATUS:
            return []
        if end.status != END_STATUS:
            reason = end.headers.get("Description") or "NATS 2.11 is needed"
            raise NoHistory(f"cannot read {name}: {reason}")
        previous = 0
        for reply in (*replies, end):
            if int(reply.headers[PREVIOUS_HEADER]) != previous:
                raise RequestTimeout(f"messages of {name} were lost on the way")
            previous = reply.seq
        return replies

    async def api(self, subject: str, name: str, body: bytes) -> StreamAnswer:
        """Return what the server says to a call of its API. Raises `NoHistory` where there is none, `BusError`."""
        try:
            (reply,) = await self._call(subject.format(stream=name), body)
        except RequestTimeout as error:
            raise NoHistory(f"{error}: JetStream is down, or {name} is not for us") from error
        if reply.status:
            raise NoHistory("JetStream is off at the NATS server")
        try:
            return _answers.decode(reply.payload)
        except msgspec.DecodeError as error:
            raise NoHistory(f"JetStream answers strangely: {error}") from error

    async def _call(
        self, subject: str, body: bytes, *, headers: dict[str, str] | None = None
    ) -> list[Reply]:
        number = str(next(self._numbers))
        call = self._calls[number] = _Call()
        try:
            self._bus.wire.send(
                subject, body, reply=self._inbox + number, headers=headers, wanted=call
            )
            async with asyncio.timeout(API_S):
                await call.is_answered.wait()
        except TimeoutError:
            raise RequestTimeout(f"no answer to {subject} within {API_S:g} s") from None
        finally:
            call.is_over = True
            del self._calls[number]
        return call.replies

    def _on_reply(
        self, subject: str, payload: bytes, _: str, headers: Mapping[str, str] | None
    ) -> None:
        call = self._calls.get(subject[len(self._inbox) :])
        if call is not None:
            reply = Reply(headers or {}, payload)
            call.replies.append(reply)
            if reply.is_last:
                call.is_answered.set()


class Pages:
    """What is left to read of a stream: sequence numbers, page by page from the one end or the other."""

    def __init__(
        self, jetstream: JetStream, name: str, subject: str, left: range, *, newest_first: bool
    ) -> None:
        self._jetstream = jetstream
        self._name = name
        self._subject = subject
        self._left = left
        self._newest_first = newest_first
        self._size = FIRST_PAGE_MESSAGES

    @property
    def are_left(self) -> bool:
        """Whether there may be more."""
        return bool(self._left)

    async def read(self) -> list[Reply]:
        """Return the next page; it may be empty where others of the subject are left."""
        left, size = self._left, self._size
        self._size = min(2 * size, PAGE_MESSAGES)
        if not self._newest_first:
            page, self._left = await self._read(left, size)
            return page
        part, pages = left[-size:], list[Reply]()
        self._left = left[:-size]
        while part:
            page, part = await self._read(part, size)
            pages += page
        return pages[::-1]

    async def _read(self, part: range, size: int) -> tuple[list[Reply], range]:
        """Return the first messages of the subject in a part, and what is left of the part behind them."""
        request = GetRequest(
            seq=part.start,
            batch=min(size, len(part)),
            max_bytes=PAGE_BYTES,
            next_by_subj=self._subject,
        )
        replies = await self._jetstream.get(self._name, request)
        page = [reply for reply in replies if reply.seq < part.stop]
        return page, range(page[-1].seq + 1 if page else part.stop, part.stop)


async def wait(event: asyncio.Event, at_most_s: float) -> None:
    """Wait for an event, so long at most."""
    with suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await event.wait()


def no_history(name: str, error: ApiError | None) -> NoHistory:
    """Return the error of a stream that cannot be had."""
    return NoHistory(f"no {name}: {error.description if error else 'the answer has no state'}")
