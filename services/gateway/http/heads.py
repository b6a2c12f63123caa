"""Builds response heads as bytes. Does not send them."""

from __future__ import annotations

from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

Pairs = Iterable[tuple[str, str]]

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus
}
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"


class BadHeader(ValueError):
    """A response field holds a line break or NUL: it would end the head early or add fields of its own."""


class Heads:
    """Response heads with a `Date` that `refresh` keeps; not made anew for each response."""

    def __init__(self) -> None:
        self._common = ""
        self.refresh()

    def refresh(self) -> None:
        """Take the date of now; to be called about each second or more often."""
        self._common = f"date: {formatdate(usegmt=True)}\r\nserver: headrace\r\n"

    def build(self, status: int, content_type: str, framing: str, headers: Pairs) -> bytes:
        """Return a whole head; `framing` holds finished lines that say how body and connection end."""
        fields = [f"{name}: {value}\r\n" for name, value in headers]
        lines = "".join(fields)
        if fields and not _is_clean(lines, len(fields)):
            raise BadHeader("a response header field holds a line break or NUL")
        if content_type:
            content_type = f"content-type: {content_type}\r\n"
        status_line = _STATUS_LINES.get(status) or f"HTTP/1.1 {status} \r\n"
        head = f"{status_line}{self._common}{content_type}{framing}{lines}\r\n"
        return head.encode("latin-1")


def _is_clean(lines: str, fields: int) -> bool:
    return lines.count("\r") == lines.count("\n") == fields and "\0" not in lines


def connection_line(*, keep_alive: bool, is_http10: bool) -> str:
    """Return the `Connection` line where the protocol version does not imply it."""
    if not keep_alive:
        return "connection: close\r\n"
    return "connection: keep-alive\r\n" if is_http10 else ""


def chunk(data: bytes) -> bytes:
    """Return data as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
