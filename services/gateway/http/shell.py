"""What all connections of one server share: settings, handler, counts, the merging outbox. Decides nothing."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from services.gateway.http.headers import Headers
from services.gateway.http.heads import Heads
from services.gateway.http.parser import RequestRefused
from services.gateway.http.settings import HttpSettings
from shared.clock import stamp_clock

if TYPE_CHECKING:
    from services.gateway.http.connection import Connection
    from services.gateway.http.exchange import Exchange

Handler = Callable[["Exchange"], None]
"""Gets a request that arrived whole; answers it now or later. Runs on the loop, must be short."""

ErrorBody = Callable[[int, str], tuple[str, bytes]]
"""Status and message → content type and body of an answer that the server gives without asking the handler."""


def plain_error(status: int, message: str) -> tuple[str, bytes]:
    """Return the message as a line of text."""
    del status
    return "text/plain; charset=utf-8", message.encode() + b"\n"


class Asked(Protocol):
    """A request as far as its head."""

    @property
    def method(self) -> str:
        """Upper case."""
        ...

    @property
    def path(self) -> str:
        """Decoded, without the query."""
        ...

    @property
    def headers(self) -> Headers:
        """Of the head."""
        ...

    @property
    def received_at(self) -> float:
        """When its first byte was read."""
        ...


class Farewell(NamedTuple):
    """What whoever accounts for requests wants of one that ends without the handler."""

    headers: list[tuple[str, str]]
    """For the answer, if there is one."""
    when_sent: Callable[[], None]
    """See `Exchange.when_sent`."""


OnUnserved = Callable[[Asked, RequestRefused | None], Farewell | None]
"""Gets a request whose head was whole and that the handler will not see: refused, or (None) its client has left. Must not raise."""


def not_told(asked: Asked, refusal: RequestRefused | None) -> None:
    """Account for nothing."""
    del asked, refusal


class HttpCounts:
    """Totals since the start, for metrics."""

    def __init__(self) -> None:
        self.connections = 0
        self.connections_refused = 0
        """Over `max_connections`."""
        self.requests = 0
        """Handed to the handler."""
        self.responses: Counter[int] = Counter()
        """Begun, by status; with those that the server gave itself."""
        self.refused: Counter[int] = Counter()
        """Answered without the handler, by status."""
        self.disconnects = 0
        """Clients that left before their answer ended."""
        self.slow_clients = 0
        """Connections cut because the client did not read."""
        self.handler_errors = 0
        """Exceptions that escaped from the handler or from `on_disconnect`."""


class Outbox:
    """Merges what streams write within one tick of the loop into one transport write each.

    One engine step reaches the gateway as one message, but under load several messages are read in one tick.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[Exchange] = []

    def add(self, exchange: Exchange) -> None:
        """Have the exchange flushed at the end of this tick; once per tick and exchange."""
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(exchange)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for exchange in waiting:
            exchange.flush()


class Drains:
    """Tells when the last byte of an answer was handed to the kernel, for all connections of a tick at once.

    uvloop writes at the end of a tick what was written in it, so the first look is in the next one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[Connection] = []

    def add(self, connection: Connection) -> None:
        """Have the connection look soon whether all of it is out."""
        if not self._waiting:
            self._loop.call_soon(self._look)
        self._waiting.append(connection)

    def _look(self) -> None:
        waiting, self._waiting = self._waiting, []
        for connection in waiting:
            connection.look_if_sent()


class Turns:
    """Has what holds the loop for long happen one by one, and for half of the time at most.

    Timers and other connections come in between; a heartbeat takes several ticks of the loop until it has left.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()

    def add(self, call: Callable[[], None]) -> None:
        """Have something called soon; it must not raise."""
        if not self._waiting:
            self._loop.call_soon(self._next)
        self._waiting.append(call)

    def _next(self) -> None:
        begun_s = perf_counter()  # uvloop's own clock stands still within a tick
        self._waiting[0]()
        self._waiting.popleft()
        if self._waiting:
            self._loop.call_later(perf_counter() - begun_s, self._next)


class Shell:
    """Shared by the connections of one server."""

    def __init__(
        self,
        settings: HttpSettings,
        handler: Handler,
        error_body: ErrorBody,
        *,
        on_unserved: OnUnserved,
        max_body_bytes: int,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.settings = settings
        self.max_body_bytes = max_body_bytes
        self.handler = handler
        self.error_body = error_body
        self.on_unserved = on_unserved
        self.loop = loop
        self.stamp = stamp_clock()
        self.heads = Heads()
        self.outbox = Outbox(loop)
        self.drains = Drains(loop)
        self.turns = Turns(loop)
        self.counts = HttpCounts()
        self.connections: set[Connection] = set()
        self.max_connections = settings.max_connections
        self.is_draining = False
        self.unfinished_body_bytes = 0
