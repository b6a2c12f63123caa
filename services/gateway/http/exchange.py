"""One request being answered: what a handler gets. Does not parse and does not decide when a connection ends."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING

from typing_extensions import override

from services.gateway.http.heads import LAST_CHUNK, Pairs, chunk, connection_line
from services.gateway.http.parser import Request

if TYPE_CHECKING:
    from services.gateway.http.connection import Connection

_BODILESS = frozenset((204, 304))


class Stage(IntEnum):
    """How far the answer is."""

    WAITING = 0
    STREAMING = 1
    OVER = 2
    """Ended, aborted, or the client has left."""


# Python 3.11 takes 100 ns to find a member of an enum by its class, and these are asked for with each token.
_WAITING, _STREAMING, _OVER = Stage


class Exchange:
    """A request and the way to answer it: `respond` once, or `start_stream`, `write`…, `end`.

    Nothing here waits or raises because of the network: once `is_open` is False (ended, or the client has left), calls do nothing.
    """

    __slots__ = (
        "_connection",
        "_head",
        "_is_chunked",
        "_is_flowing",
        "_is_silent",
        "_parts",
        "_send",
        "body",
        "headers",
        "is_http10",
        "keep_alive",
        "method",
        "on_disconnect",
        "path",
        "peer",
        "query",
        "received_at",
        "stage",
    )

    def __init__(self, connection: Connection, request: Request) -> None:
        self._connection = connection
        self._send = connection.send_stream
        self.method = request.method
        self.path = request.path
        """Decoded, without the query."""
        self.query = request.query
        """As sent."""
        self.headers = request.headers
        self.body = request.body
        self.peer = connection.peer
        """Address and port of the other end of the connection."""
        self.received_at = request.received_at
        """When the first byte was read, on the clock of stamps."""
        self.keep_alive = request.keep_alive
        self.is_http10 = request.is_http10
        self.on_disconnect: Callable[[], None] | None = None
        """Called once if the client leaves, or is cut off for not reading, before the answer ended; also before it began."""
        self.stage = _WAITING
        self._head = b""
        self._parts: list[bytes] = []
        self._is_chunked = False
        self._is_flowing = False
        """The stream is open, its head has left, and chunks are wanted: the usual state."""
        self._is_silent = request.method == "HEAD"

    @property
    def is_open(self) -> bool:
        """Whether somebody still waits for (more of) the answer."""
        return self.stage is not _OVER

    @property
    def buffered_bytes(self) -> int:
        """Written but not yet taken by the kernel."""
        if self.stage is _OVER:
            return 0
        return sum(map(len, self._parts)) + self._connection.buffered_bytes

    def respond(
        self,
        status: int,
        body: bytes,
        *,
        content_type: str = "application/json",
        headers: Pairs = (),
    ) -> None:
        """Send a whole answer. Raises `BadHeader` for a header with a line break, `RuntimeError` if a stream was started."""
        if self.stage is _OVER:
            return
        self._must_be_waiting()
        if status in _BODILESS:
            content_type, framing, body = "", "", b""
        else:
            framing = f"content-length: {len(body)}\r\n"
        if self._is_silent:
            body = b""
        head = self._build_head(status, content_type, framing, headers)
        connection = self._connection
        connection.send(head + body)
        self._over()
        connection.finish(keep_alive=self.keep_alive)

    def start_stream(
        self, *, content_type: str = "text/event-stream; charset=utf-8", headers: Pairs = ()
    ) -> None:
        """Begin a 200 answer of unknown length: chunked, to HTTP/1.0 clients ended by closing. Raises as `respond` does."""
        if self.stage is _OVER:
            return
        self._must_be_waiting()
        if self.is_http10:
            self.keep_alive = False
        framing = "" if self.is_http10 else "transfer-encoding: chunked\r\n"
        self._head = self._build_head(200, content_type, framing, headers)
        self._is_chunked = not self.is_http10
        self.stage = _STREAMING
        self._connection.outbox.add(self)

    def write(self, data: bytes) -> None:
        """Send a piece of the stream. All pieces of one tick of the loop leave as one write; may cut a client that does not read."""
        if self.stage is not _STREAMING:
            if self.stage is _WAITING:
                raise RuntimeError("write before start_stream")
            return
        parts = self._parts
        if not parts:
            self._connection.outbox.add(self)
        parts.append(data)

    def end(self) -> None:
        """End the stream properly. What was written in this tick leaves with the end in one write."""
        if self.stage is not _STREAMING:
            if self.stage is _WAITING:
                raise RuntimeError("end before start_stream")
            return
        data = self._take()
        if self._is_chunked and not self._is_silent:
            data += LAST_CHUNK
        connection = self._connection
        if data:
            connection.send(data)
        self._over()
        connection.finish(keep_alive=self.keep_alive)

    def abort(self) -> None:
        """Cut the connection, after what was written so far: the client must see that the answer is not complete."""
        if self.stage is _OVER:
            return
        data = self._take()
        connection, is_delimited = self._connection, self._is_chunked or self.stage is _WAITING
        if data:
            connection.send(data)
        self._over()
        connection.cut(is_delimited=is_delimited)

    def when_sent(self, then: Callable[[], None]) -> None:
        """Call `then` once when what was written was handed to the kernel (under TLS: to its layer), or the connection is gone."""
        self._connection.when_sent(then)

    def flush(self) -> None:
        """Send what this tick has gathered; called by the outbox."""
        if self._is_flowing:
            parts = self._parts
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            if data:
                self._send(b"%x\r\n%b\r\n" % (len(data), data))
        elif self.stage is _STREAMING:
            data = self._take()
            if data:
                self._send(data)
                self._is_flowing = self._is_chunked and not self._is_silent and self.is_open

    def lose(self) -> None:
        """Called by the connection when the client is gone."""
        if self.stage is _OVER:
            return
        callback = self.on_disconnect
        self._over()
        if callback is not None:
            callback()

    def _over(self) -> None:
        self.stage = _OVER
        self._is_flowing = False
        self.on_disconnect = None
        self._parts.clear()

    def _must_be_waiting(self) -> None:
        if self.stage is not _WAITING:
            raise RuntimeError("the answer has begun already")

    def _build_head(self, status: int, content_type: str, framing: str, headers: Pairs) -> bytes:
        if self._connection.is_draining:
            self.keep_alive = False
        framing += connection_line(keep_alive=self.keep_alive, is_http10=self.is_http10)
        return self._connection.build_head(status, content_type, framing, headers)

    def _take(self) -> bytes:
        parts = self._parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        if self._is_silent:
            data = b""
        elif data and self._is_chunked:
            data = chunk(data)
        if self._head:
            data, self._head = self._head + data, b""
        return data

    @override
    def __repr__(self) -> str:
        return f"<Exchange {self.method} {self.path} from {self.peer}: {self.stage.name.lower()}>"
