"""One client connection: requests strictly in order, one in flight, input behind it held back within a bound.

End of input while an answer is pending counts as the client having left. A client that only closed its sending side looks exactly the
same until we write, and a request must be cancelled when its client is gone; uvicorn and aiohttp decide alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Final, cast

from typing_extensions import override

from services.gateway.http.exchange import Exchange, Stage
from services.gateway.http.heads import CONTINUE, Pairs
from services.gateway.http.intake import Intake
from services.gateway.http.outgoing import Outgoing
from services.gateway.http.parser import Request, RequestRefused
from services.gateway.http.shell import Asked, Outbox, Shell

TURNED_AWAY_AT_ONCE: Final = 256
"""Connections over the limit that are being told so; more are dropped without a word."""
LARGE_BODY_BYTES: Final = 262_144
"""Reading a larger one may take tens of milliseconds, so that one has its turn in a tick."""
_REQUESTS_PER_TICK: Final = 32
"""Of one connection that are answered at once; then the others on this loop have their turn."""
_UNAVAILABLE: Final = 503
_NEVER: Final = float("inf")


class End(IntEnum):
    """How far the connection is with ending."""

    OPEN = 0
    HALF_CLOSED = 1
    """Our last byte is written; input is read and dropped until the client closes or `linger_s` is over."""
    CLOSED = 2
    """The transport was told to close; it may still be flushing."""


_OPEN, _HALF_CLOSED, _CLOSED = End  # see `exchange.py`


class Connection(asyncio.Protocol):
    """Protocol of one accepted connection."""

    def __init__(self, shell: Shell) -> None:
        self.peer = ""
        self.outbox: Outbox = shell.outbox
        self._shell = shell
        self._settings = shell.settings
        self._intake = Intake(shell)
        self._transport = cast(asyncio.Transport, None)
        self._out = cast(Outgoing, None)
        self._exchange: Exchange | None = None
        self._is_advancing = False
        self._end = _OPEN
        self._deadline = _NEVER
        self._free_since = 0.0
        self._unsent: list[Callable[[], None]] = []
        """Who wants to know when all that was sent is out."""

    # Questions

    @property
    def is_draining(self) -> bool:
        """Whether the server is stopping, so that no answer may promise a next request."""
        return self._shell.is_draining

    @property
    def buffered_bytes(self) -> int:
        """Not yet taken by the kernel."""
        return self._out.buffered_bytes

    @property
    def stage(self) -> str:
        """`idle`, `reading`, `waiting`, `streaming` or `closing`, for metrics."""
        if self._end is not _OPEN:
            return "closing"
        if self._exchange is not None:
            return "streaming" if self._exchange.stage is Stage.STREAMING else "waiting"
        return "idle" if self._intake.is_between else "reading"

    # Called by the loop

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._out = Outgoing(self._transport)
        shell = self._shell
        shell.connections.add(self)
        shell.counts.connections += 1
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self.peer = f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
        self._deadline = shell.loop.time() + self._settings.head_timeout_s
        if len(shell.connections) > shell.max_connections:
            self._turn_away()

    @override
    def data_received(self, data: bytes) -> None:
        if self._end is not _OPEN:
            return
        self._intake.add(data)
        if self._exchange is None and not self._out.is_paused:
            self._advance()
        elif self._intake.is_full:
            self._transport.pause_reading()

    @override
    def eof_received(self) -> bool:
        self._lose()
        self._close()
        return False

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._end = _CLOSED
        self._shell.connections.discard(self)
        self._lose()
        self._intake.drop()
        self._tell_sent()

    @override
    def pause_writing(self) -> None:
        self._out.is_paused = True
        self._out.watch(self._shell.loop.time())

    @override
    def resume_writing(self) -> None:
        self._out.is_paused = False
        if self._unsent:
            self._look_again()
        if self._exchange is None and self._end is _OPEN:
            self._advance()

    # Called by the exchange

    def send(self, data: bytes) -> None:
        """Hand bytes to the transport."""
        self._out.send(data)

    def send_stream(self, data: bytes) -> None:
        """Hand bytes of a stream to the transport, or cut the client if too much of it waits already."""
        out = self._out
        out.send(data)
        if out.is_paused and self.buffered_bytes > self._settings.max_write_buffer_bytes:
            self._cut_slow_client()

    def build_head(self, status: int, content_type: str, framing: str, headers: Pairs) -> bytes:
        """Return a response head, counted."""
        self._shell.counts.responses[status] += 1
        return self._shell.heads.build(status, content_type, framing, headers)

    def finish(self, *, keep_alive: bool) -> None:
        """The answer is written: go on with the next request, or end."""
        self._exchange = None
        if self._end is not _OPEN:
            return
        if not keep_alive or self._shell.is_draining:
            self._half_close()
            return
        self._free_since = self._shell.loop.time()
        self._deadline = self._free_since + self._settings.keep_alive_s
        if not self._is_advancing:
            self._advance()

    def when_sent(self, then: Callable[[], None]) -> None:
        """See `Exchange.when_sent`."""
        if not self._unsent:
            self._shell.drains.add(self)
        self._unsent.append(then)

    def cut(self, *, is_delimited: bool) -> None:
        """End the connection without ending the answer; by a reset where the client could take closing for its end."""
        self._exchange = None
        if is_delimited:
            self._close()
            return
        self._out.reset_on_close()
        self.abort()

    # Called by the server

    def look_if_sent(self) -> None:
        """Tell those who want to know whether all is out; if not, have the transport say so."""
        if self.buffered_bytes == 0:
            self._tell_sent()
        elif not self._transport.is_closing():
            # Calls `pause_writing` as soon as anything waits and `resume_writing` when nothing does.
            self._transport.set_write_buffer_limits(high=0)

    def sweep(self, now: float) -> None:
        """Enforce what is due."""
        is_stuck = self._out.is_paused or (self._end is not _OPEN and self.buffered_bytes > 0)
        if not is_stuck:
            if now >= self._deadline:
                self._expire()
        elif self._out.is_stalled(now, stall_s=self._settings.write_stall_s):
            self._cut_slow_client()

    def close_if_idle(self) -> None:
        """End an idle connection gently; others end after their answer because the server is draining."""
        if self._end is _OPEN and self._exchange is None and self._intake.is_between:
            self._half_close()

    def abort(self) -> None:
        """Drop the connection at once."""
        self._end = _CLOSED
        self._transport.abort()
        self._lose()

    # Input

    def _advance(self) -> None:
        """Start what has come until one request is pending or nothing is left."""
        self._is_advancing = True
        for _ in range(_REQUESTS_PER_TICK):
            if self._exchange is not None or self._end is not _OPEN or self._out.is_paused:
                break
            now = self._shell.stamp()
            match self._intake.next(now):
                case Request() as request:
                    self._start(request)
                case RequestRefused() as refusal:
                    self._refuse(refusal)
                case None:
                    self._await_input(now)
                    break
        else:
            self._shell.loop.call_soon(self._advance)
        self._is_advancing = False
        if not self._intake.is_full:
            self._transport.resume_reading()

    def _await_input(self, now: float) -> None:
        deadline = self._intake.deadline(now, free_since=self._free_since)
        if deadline is not None:
            self._deadline = deadline
            if self._intake.take_continue_due():
                self.send(CONTINUE)

    def _start(self, request: Request) -> None:
        shell = self._shell
        shell.counts.requests += 1
        self._deadline = _NEVER
        exchange = self._exchange = Exchange(self, request)
        if len(request.body) > LARGE_BODY_BYTES:
            shell.turns.add(partial(self._handle, exchange))
        else:
            self._handle(exchange)

    def _handle(self, exchange: Exchange) -> None:
        if not exchange.is_open:
            self._unserved(exchange, None)  # its client left before its turn came
            return
        try:
            self._shell.handler(exchange)
        except Exception as error:  # noqa: BLE001 - a fault in one request must not end the others on this loop
            self._report("HTTP handler failed", error)
            self._answer_failure(exchange)

    # Answers of our own

    def _answer_failure(self, exchange: Exchange) -> None:
        if exchange.stage is not Stage.WAITING:
            exchange.abort()
            return
        content_type, body = self._shell.error_body(500, "Internal error.")
        exchange.keep_alive = False
        exchange.respond(500, body, content_type=content_type)

    def _refuse(self, refusal: RequestRefused) -> None:
        content_type, body = self._shell.error_body(refusal.status, str(refusal))
        framing = f"content-length: {len(body)}\r\nconnection: close\r\n"
        headers = [("retry-after", "1")] if refusal.status == _UNAVAILABLE else []
        asked = self._intake.take_unfinished()
        if asked is not None:
            headers += self._unserved(asked, refusal)
        self._shell.counts.refused[refusal.status] += 1
        self.send(self.build_head(refusal.status, content_type, framing, headers) + body)
        self._half_close()

    def _unserved(self, asked: Asked, refusal: RequestRefused | None) -> list[tuple[str, str]]:
        """Have a request accounted for that the handler does not see; return headers for its answer."""
        farewell = self._shell.on_unserved(asked, refusal)
        if farewell is None:
            return []
        self.when_sent(farewell.when_sent)
        return farewell.headers

    def _turn_away(self) -> None:
        """Over the bound: say so while that is cheap, else drop."""
        self._shell.counts.connections_refused += 1
        if len(self._shell.connections) > self._shell.max_connections + TURNED_AWAY_AT_ONCE:
            self.abort()
        else:
            self._refuse(RequestRefused(_UNAVAILABLE, "Too many connections; try again later."))

    # Ends

    def _lose(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            asked = self._intake.take_unfinished()
            if asked is not None:
                self._unserved(asked, None)
            return
        self._shell.counts.disconnects += 1
        try:
            exchange.lose()
        except Exception as error:  # noqa: BLE001 - as for the handler
            self._report("on_disconnect failed", error)

    def _tell_sent(self) -> None:
        unsent, self._unsent = self._unsent, []
        for then in unsent:
            then()

    def _look_again(self) -> None:
        if self.buffered_bytes == 0:
            if not self._transport.is_closing():
                self._transport.set_write_buffer_limits()
            self._tell_sent()

    def _cut_slow_client(self) -> None:
        self._shell.counts.slow_clients += 1
        self.abort()

    def _half_close(self) -> None:
        self._end = _HALF_CLOSED
        self._wind_up()
        if self._transport.can_write_eof():
            self._transport.write_eof()
            self._transport.resume_reading()
        else:
            self._close()

    def _close(self) -> None:
        if self._end is _CLOSED:
            return  # asyncio's TLS transport falls apart at a second close
        self._end = _CLOSED
        self._wind_up()
        self._transport.close()

    def _wind_up(self) -> None:
        self._intake.drop()
        now = self._shell.loop.time()
        self._out.watch(now)
        self._deadline = now + self._settings.linger_s

    def _expire(self) -> None:
        if self._end is _HALF_CLOSED:
            self._close()
        elif self._end is _CLOSED:
            self.abort()
        elif self._intake.is_between:
            self._half_close()
        else:
            self._refuse(RequestRefused(408, "The request took too long to arrive."))

    def _report(self, message: str, error: Exception) -> None:
        self._shell.counts.handler_errors += 1
        self._shell.loop.call_exception_handler({"message": message, "exception": error})

    @override
    def __repr__(self) -> str:
        return f"<Connection {self.peer}: {self.stage}, {self._end.name.lower()}>"
