"""Bytes in, requests out: llhttp (strict) plus our limits. Does no I/O and knows no clock.

llhttp itself refuses what request smuggling is made of: bare CR or LF, folded fields, a space before the colon, control characters,
Content-Length beside Transfer-Encoding or twice, an unknown method. What it lets pass and we do not is checked here.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import Final

import httptools
import msgspec

from services.gateway.http.headers import DuplicateHeader, Headers
from services.gateway.http.settings import HttpSettings
from services.gateway.http.target import BadTarget, split_target
from shared.errors import HeadraceError

SLICE_BYTES: Final = 8192
"""Fed to llhttp at once. It cannot be stopped inside, so this bounds how many pipelined requests one feed can yield (about 300)."""

_METHODS: Final = {
    m.encode(): m for m in ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
}
_FIELD_OVERHEAD_BYTES: Final = 4  # ": " and CRLF


class RequestRefused(HeadraceError):
    """The request must not go on; `status` and message are the answer, then the connection is closed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Request(msgspec.Struct, kw_only=True):
    """A request that arrived whole."""

    method: str
    path: str
    query: str
    headers: Headers
    body: bytes = b""
    received_at: float
    keep_alive: bool
    is_http10: bool


class Phase(IntEnum):
    """What the parser waits for."""

    BETWEEN = 0
    """The first byte of a request."""
    HEAD = 1
    BODY = 2


_BETWEEN, _HEAD, _BODY = Phase  # see `exchange.py`


class RequestParser:
    """Push parser; finished requests wait in `ready`. After `RequestRefused` it must not be fed again."""

    def __init__(self, settings: HttpSettings, *, max_body_bytes: int) -> None:
        self.ready: deque[Request] = deque()
        self.phase = _BETWEEN
        self.began_at = 0.0
        """When the first byte of the request under way came."""
        self.is_continue_due = False
        """The client waits for `100 Continue` before it sends the body of the request under way."""
        self._settings = settings
        self._max_body_bytes = max_body_bytes
        self._llhttp = httptools.HttpRequestParser(self)
        self._now = 0.0
        self._is_replaying = False
        self._is_upgrade = False
        self._target = b""
        self._lines: list[tuple[bytes, bytes]] = []
        self._fed_bytes = 0
        """Since the message, the last chunk or the last piece of body began."""
        self._request: Request | None = None
        self._body: bytes | bytearray = b""

    @property
    def body_bytes(self) -> int:
        """Held for the request under way."""
        return len(self._body)

    def feed(self, data: bytes | memoryview, *, now: float) -> None:
        """Take at most `SLICE_BYTES`; may raise `RequestRefused`, also after requests were added to `ready`."""
        self._now = now
        while True:
            try:
                self._llhttp.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                self._ignore_upgrade()
                data = data[upgrade.args[0] :]
            except httptools.HttpParserCallbackError as error:
                raise error.__context__ or error from None
            except httptools.HttpParserError as error:
                raise RequestRefused(400, f"Not a valid HTTP/1.1 request: {error}.") from None
            else:
                break
        if self.phase is not _BETWEEN:
            self._bound_unfinished_field(len(data))

    def take_unfinished(self) -> Request | None:
        """Return the request under way, once, where its head is whole; nothing may be fed after."""
        request, self._request = self._request, None
        return request

    def drop_body(self) -> None:
        """Free what was held; nothing may be fed after."""
        self._body = b""

    def _bound_unfinished_field(self, fed_bytes: int) -> None:
        """Bound a single endless field, trailer or chunk extension: llhttp's binding shows a field only once it is whole."""
        self._fed_bytes += fed_bytes
        if self._fed_bytes > self._settings.max_head_bytes + SLICE_BYTES:
            raise self._head_too_large()

    def _ignore_upgrade(self) -> None:
        """Go on behind a head with `Upgrade: h2c` and the like as if the field were not there.

        llhttp skips the body then, but common clients (Java's among them) send an ordinary body and expect an ordinary answer.
        So a new parser is told in a head of our own how long the body is, and takes over.
        """
        assert self._request is not None
        framing = b""
        for name in (b"content-length", b"transfer-encoding"):
            value = self._request.headers.raw(name)
            if value is not None:
                framing = name + b": " + value + b"\r\n"
        self._is_upgrade = False
        self._llhttp = httptools.HttpRequestParser(self)
        self._is_replaying = True
        self._llhttp.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n")
        self._is_replaying = False

    # What llhttp calls, in this order.

    def on_message_begin(self) -> None:
        """A request's first byte."""
        if self._is_replaying:
            return
        self.phase = _HEAD
        self.began_at = self._now
        self._target = b""
        self._lines = []
        self._fed_bytes = 0
        self._body = b""

    def on_url(self, piece: bytes) -> None:
        """The target, or a piece of it."""
        if self._is_replaying:
            return
        self._target += piece
        if len(self._target) > self._settings.max_request_line_bytes:
            raise RequestRefused(
                414, f"The request target exceeds {self._settings.max_request_line_bytes} bytes."
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field; after the head it is a trailer, which nothing here has a use for. Called most often, so it only keeps."""
        if self.phase is _HEAD:
            self._lines.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is whole: judge it before any of the body is kept."""
        if self._is_replaying:
            return
        llhttp, headers = self._llhttp, self._take_headers()
        version = llhttp.get_http_version()
        if version not in ("1.1", "1.0"):
            raise RequestRefused(505, f"HTTP/{version} is not spoken here; use HTTP/1.1.")
        method = _METHODS.get(llhttp.get_method())
        if method is None:
            raise RequestRefused(501, "This method is not implemented.")
        try:
            path, query = split_target(self._target)
        except BadTarget as error:
            raise RequestRefused(400, f"Bad request target: {error}.") from None
        is_http10 = version == "1.0"
        if not is_http10 and headers.raw(b"host") is None:
            raise RequestRefused(400, "The header field host is missing.")
        self._request = Request(
            method=method,
            path=path,
            query=query,
            headers=headers,
            received_at=self.began_at,
            keep_alive=llhttp.should_keep_alive(),
            is_http10=is_http10,
        )
        self._judge_body(headers, is_http10=is_http10)
        self._is_upgrade = llhttp.should_upgrade()
        self.phase = _BODY

    def _take_headers(self) -> Headers:
        settings, lines = self._settings, self._lines
        if len(lines) > settings.max_headers:
            raise RequestRefused(431, f"More than {settings.max_headers} header fields.")
        size_bytes = sum([len(name) + len(value) for name, value in lines])
        if size_bytes + len(lines) * _FIELD_OVERHEAD_BYTES > settings.max_head_bytes:
            raise self._head_too_large()
        try:
            headers = Headers(lines)
        except DuplicateHeader as error:
            raise RequestRefused(400, f"The header field {error} came twice.") from None
        self._lines = []
        return headers

    def _judge_body(self, headers: Headers, *, is_http10: bool) -> None:
        length = headers.raw(b"content-length")
        if length is not None and int(length) > self._max_body_bytes:
            raise self._body_too_large()
        coding = headers.raw(b"transfer-encoding")
        if coding is not None:
            if is_http10:
                raise RequestRefused(400, "HTTP/1.0 has no transfer-encoding.")
            if coding.lower() != b"chunked":
                raise RequestRefused(501, "The only transfer-encoding understood is chunked.")
        expectation = headers.raw(b"expect")
        if expectation is not None and not is_http10:
            if expectation.lower() != b"100-continue":
                raise RequestRefused(417, "The only expectation understood is 100-continue.")
            self.is_continue_due = True

    def on_chunk_header(self) -> None:
        """The next chunk; of no size, before trailers."""
        self._fed_bytes = 0

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        self._fed_bytes = 0
        self.is_continue_due = False
        body = self._body
        if len(body) + len(piece) > self._max_body_bytes:
            raise self._body_too_large()
        if not body:
            self._body = piece
        elif isinstance(body, bytearray):
            body += piece
        else:
            self._body = bytearray(body) + piece

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self._is_upgrade:
            return
        request = self._request
        assert request is not None
        if self._body:
            request.body = bytes(self._body)
            self._body = b""
        self._request = None
        self.is_continue_due = False
        self.phase = _BETWEEN
        self.ready.append(request)

    def _head_too_large(self) -> RequestRefused:
        return RequestRefused(
            431, f"The header fields exceed {self._settings.max_head_bytes} bytes."
        )

    def _body_too_large(self) -> RequestRefused:
        return RequestRefused(413, f"The body exceeds {self._max_body_bytes} bytes.")
