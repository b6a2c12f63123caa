"""What was published before: messages whose route has a `Stream` are kept by the NATS server for a while, in memory.

The owner of the message keeps the stream there (`keep`), readers replay it (`replay`); publishing and live delivery know nothing of it.
Goes through the wire as all else does, so it is the same on the memory bus. Needs JetStream of NATS 2.11 (batched direct get).
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple, Self, TypeVar

import msgspec

from shared import logs
from shared.codec import decode
from shared.errors import BusClosed, BusError, NoHistory, RequestTimeout, Undecodable
from shared.messages import Message
from shared.streams import (
    CREATE_SUBJECT,
    END_STATUS,
    GET_SUBJECT,
    INFO_SUBJECT,
    NO_STREAM_CODE,
    NOT_FOUND_STATUS,
    PENDING_HEADER,
    PREVIOUS_HEADER,
    SEQUENCE_HEADER,
    SUBJECT_HEADER,
    UPDATE_SUBJECT,
    ApiError,
    GetRequest,
    StreamAnswer,
    config_of,
    stream_of,
)
from shared.subjects import check_subject, pattern
from shared.typedbus import TypedBus
from shared.wire import STATUS_HEADER

M = TypeVar("M", bound=Message)

API_S = 5.0
"""What the server gets to answer."""
LOOK_S = 60.0
"""Between two looks whether the stream is there, beside those after a reconnect."""
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


class _Reply(NamedTuple):
    """One message that answers a call."""

    headers: Mapping[str, str]
    payload: bytes

    @property
    def is_last(self) -> bool:
        """Whether nothing follows: only messages within a batch tell how many are pending."""
        return PENDING_HEADER not in self.headers or STATUS_HEADER in self.headers

    @property
    def status(self) -> str:
        return self.headers.get(STATUS_HEADER, "")

    @property
    def seq(self) -> int:
        return int(self.headers.get(SEQUENCE_HEADER, 0))


class _Call:
    """A call that is answered by one message or a batch of them."""

    def __init__(self) -> None:
        self.replies: list[_Reply] = []
        self.is_answered = asyncio.Event()
        self.is_over = False

    def done(self) -> bool:
        """See `Wanted`."""
        return self.is_over


class History:
    """Keeps and replays streams over one bus. Make it with `open`, once for each bus; it ends with the bus."""

    def __init__(self, bus: TypedBus) -> None:
        self._bus = bus
        self._log = logs.get("history")
        self._inbox = bus.wire.new_inbox() + "."
        self._numbers = itertools.count()
        self._calls: dict[str, _Call] = {}

    @classmethod
    async def open(cls, bus: TypedBus) -> Self:
        """Return the history that this bus reaches; whether there is any is not asked yet. Raises `BusClosed`, `RequestTimeout`."""
        history = cls(bus)
        await bus.wire.listen(history._inbox + "*", history._on_reply)
        return history

    async def ensure(self, kind: type[Message], *, replicas: int = 1) -> None:
        """Create the stream of a message, or give it the limits of the route; what it holds stays. A second call changes nothing.

        Raises `NoHistory` with the server's reason, and `BusError` where nothing can be sent.
        """
        config = config_of(kind, replicas=replicas)
        # Update first: a second create is refused where the server has no room for twice the stream.
        answer = await self._api(UPDATE_SUBJECT, config.name, _encode(config))
        if answer.error and answer.error.err_code == NO_STREAM_CODE:
            answer = await self._api(CREATE_SUBJECT, config.name, _encode(config))
        if answer.error:
            raise _no_history(config.name, answer.error)

    async def keep(self, kind: type[Message], *, replicas: int = 1) -> None:
        """Run `ensure` now, after each reconnect and now and then, until the bus is closed: a restarted server has forgotten the stream.

        Where it cannot be had, one warning is logged, and it is tried again ever more seldom; nothing is raised.
        """
        name = stream_of(kind).name
        again = asyncio.Event()
        self._bus.on_loss(lambda _: again.set())
        is_kept, wait_s = True, RETRY_S
        while True:
            again.clear()
            try:
                await self.ensure(kind, replicas=replicas)
            except BusClosed:
                return
            except BusError as error:
                if is_kept:
                    self._log.warning("history_unavailable", stream=name, reason=str(error))
                is_kept, wait_s = False, min(2 * wait_s, MAX_RETRY_S)
            else:
                if not is_kept:
                    self._log.info("history_available", stream=name)
                is_kept, wait_s = True, RETRY_S
            await _wait(again, LOOK_S if is_kept else wait_s)

    async def replay(
        self,
        kind: type[M],
        *,
        since_s: float | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        **keys: str,
    ) -> AsyncIterator[M]:
        """Yield the messages of a type that are kept now, of the last `since_s` at most; `keys` fix fields of the subject.

        What comes or expires meanwhile is left out, and so may be what was published in the last moment: the server keeps it just after it
        has delivered it. Who also subscribes replays again a second later, and sees some messages twice.
        Undecodable messages are skipped and counted as on the bus.
        Raises `NoHistory` where nothing is kept, `RequestTimeout` where the server falls silent in between, `BusError`.
        """
        pages = await self._pages(kind, pattern(kind, keys), since_s, newest_first)
        left = sys.maxsize if limit is None else limit
        while pages.are_left and left > 0:
            for reply in await pages.read():
                try:
                    message = decode(kind, reply.payload)
                    check_subject(message, reply.headers.get(SUBJECT_HEADER, ""))
                except Undecodable:
                    self._bus.counts.undecodable += 1
                    continue
                yield message
                left -= 1
                if not left:
                    return

    async def _pages(
        self, kind: type[Message], subject: str, since_s: float | None, newest_first: bool
    ) -> _Pages:
        """Return what is kept now, not read yet."""
        stream = stream_of(kind)
        name = stream.name
        answer = await self._api(INFO_SUBJECT, name, b"")
        if answer.state is None or answer.ts is None:
            raise _no_history(name, answer.error)
        first, last = max(answer.state.first_seq, 1), answer.state.last_seq
        if since_s is not None and since_s < stream.max_age_s:
            # The server's clock, whatever ours says.
            moment = answer.ts - timedelta(seconds=since_s)
            request = GetRequest(
                start_time=moment, batch=1, max_bytes=PAGE_BYTES, next_by_subj=subject
            )
            found = await self.get(name, request)
            first = found[0].seq if found else last + 1
        return _Pages(self, name, subject, range(first, last + 1), newest_first=newest_first)

    async def get(self, name: str, request: GetRequest) -> list[_Reply]:
        """Return messages of a stream; none where none is left. For `_Pages`."""
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

    async def _api(self, subject: str, name: str, body: bytes) -> StreamAnswer:
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

    async def _call(self, subject: str, body: bytes) -> list[_Reply]:
        number = str(next(self._numbers))
        call = self._calls[number] = _Call()
        try:
            self._bus.wire.send(subject, body, reply=self._inbox + number, wanted=call)
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
            reply = _Reply(headers or {}, payload)
            call.replies.append(reply)
            if reply.is_last:
                call.is_answered.set()


class _Pages:
    """What is left to read of a stream: sequence numbers, page by page from the one end or the other."""

    def __init__(
        self, history: History, name: str, subject: str, left: range, *, newest_first: bool
    ) -> None:
        self._history = history
        self._name = name
        self._subject = subject
        self._left = left
        self._newest_first = newest_first
        self._size = FIRST_PAGE_MESSAGES

    @property
    def are_left(self) -> bool:
        """Whether there may be more."""
        return bool(self._left)

    async def read(self) -> list[_Reply]:
        """Return the next page; it may be empty where others of the subject are left."""
        left, size = self._left, self._size
        self._size = min(2 * size, PAGE_MESSAGES)
        if not self._newest_first:
            page, self._left = await self._read(left, size)
            return page
        part, pages = left[-size:], list[_Reply]()
        self._left = left[:-size]
        while part:
            page, part = await self._read(part, size)
            pages += page
        return pages[::-1]

    async def _read(self, part: range, size: int) -> tuple[list[_Reply], range]:
        """Return the first messages of the subject in a part, and what is left of the part behind them."""
        request = GetRequest(
            seq=part.start,
            batch=min(size, len(part)),
            max_bytes=PAGE_BYTES,
            next_by_subj=self._subject,
        )
        replies = await self._history.get(self._name, request)
        page = [reply for reply in replies if reply.seq < part.stop]
        return page, range(page[-1].seq + 1 if page else part.stop, part.stop)


async def _wait(event: asyncio.Event, at_most_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await event.wait()


def _no_history(name: str, error: ApiError | None) -> NoHistory:
    return NoHistory(f"no {name}: {error.description if error else 'the answer has no state'}")
