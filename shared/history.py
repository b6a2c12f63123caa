"""What was published before: messages whose route has a `Stream` are kept by the NATS server for a while, in memory.

The owner of the message keeps the stream there (`keep`), readers replay it (`replay`); publishing and live delivery know nothing of it.
Goes through the wire as all else does, so it is the same on the memory bus. Needs JetStream of NATS 2.11 (batched direct get).
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Self, TypeVar

from shared.codec import decode
from shared.errors import Undecodable
from shared.jetstream import PAGE_BYTES, JetStream, Pages, no_history
from shared.messages import Message
from shared.streams import INFO_SUBJECT, SUBJECT_HEADER, GetRequest, config_of, stream_of
from shared.subjects import check_subject, pattern
from shared.typedbus import TypedBus

M = TypeVar("M", bound=Message)


class History:
    """Keeps and replays streams over one bus. Make it with `open`, once for each bus; it ends with the bus."""

    def __init__(self, bus: TypedBus, jetstream: JetStream) -> None:
        self._bus = bus
        self._jetstream = jetstream

    @classmethod
    async def open(cls, bus: TypedBus) -> Self:
        """Return the history that this bus reaches; whether there is any is not asked yet. Raises `BusClosed`, `RequestTimeout`."""
        return cls(bus, await JetStream.open(bus, log="history"))

    async def ensure(self, kind: type[Message], *, replicas: int = 1) -> None:
        """Create the stream of a message, or give it the limits of the route; see `JetStream.ensure`."""
        await self._jetstream.ensure(config_of(kind, replicas=replicas))

    async def keep(self, kind: type[Message], *, replicas: int = 1) -> None:
        """Keep the stream of a message there, until the bus is closed; see `JetStream.keep`."""
        await self._jetstream.keep(config_of(kind, replicas=replicas))

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
    ) -> Pages:
        """Return what is kept now, not read yet."""
        stream = stream_of(kind)
        name = stream.name
        answer = await self._jetstream.api(INFO_SUBJECT, name, b"")
        if answer.state is None or answer.ts is None:
            raise no_history(name, answer.error)
        first, last = max(answer.state.first_seq, 1), answer.state.last_seq
        if since_s is not None and since_s < stream.max_age_s:
            # The server's clock, whatever ours says.
            moment = answer.ts - timedelta(seconds=since_s)
            request = GetRequest(
                start_time=moment, batch=1, max_bytes=PAGE_BYTES, next_by_subj=subject
            )
            found = await self._jetstream.get(name, request)
            first = found[0].seq if found else last + 1
        return Pages(
            self._jetstream, name, subject, range(first, last + 1), newest_first=newest_first
        )
