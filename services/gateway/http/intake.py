"""The read side of one connection: held input, the parser, and until when more must have come. Answers nobody."""

from __future__ import annotations

from typing import Final

from services.gateway.http.parser import SLICE_BYTES, Phase, Request, RequestParser, RequestRefused
from services.gateway.http.shell import Shell

HELD_BYTES: Final = 65_536
"""Pipelined input kept while an answer is pending; reading pauses beyond, and then a disconnect is noticed only by writing."""


class Intake:
    """Turns input into requests, one at a time and only when asked, so that what is behind a pending request waits as bytes."""

    __slots__ = ("_body_began_at", "_body_bytes", "_held", "_parser", "_refusal", "_shell")

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._parser = RequestParser(shell.settings, max_body_bytes=shell.max_body_bytes)
        self._held: bytes | memoryview = b""
        self._refusal: RequestRefused | None = None
        self._body_bytes = 0
        self._body_began_at: float | None = None

    @property
    def is_full(self) -> bool:
        """Whether reading should pause."""
        return len(self._held) > HELD_BYTES

    @property
    def is_between(self) -> bool:
        """Whether no request has begun to arrive."""
        return self._parser.phase is Phase.BETWEEN

    def add(self, data: bytes) -> None:
        """Keep input until `next` wants it."""
        if self._held:
            self._held = bytes(self._held) + data
        else:
            self._held = data if len(data) <= SLICE_BYTES else memoryview(data)

    def next(self, now: float) -> Request | RequestRefused | None:
        """Return what came next, None if it is not whole yet. After a refusal nothing comes any more."""
        while True:
            if self._parser.ready:
                self._body_began_at = None
                return self._parser.ready.popleft()
            if self._refusal is not None:
                return self._refusal
            if not self._held:
                return None
            self._feed(now)

    def take_unfinished(self) -> Request | None:
        """Return the request under way, once, where its head is whole; `next` must not be called after."""
        return self._parser.take_unfinished()

    def take_continue_due(self) -> bool:
        """Whether the client waits for `100 Continue`; True once for a request."""
        is_due, self._parser.is_continue_due = self._parser.is_continue_due, False
        return is_due

    def deadline(self, now: float, *, free_since: float) -> float | None:
        """Return until when more must have come after this input; None between requests.

        A head's time does not begin while the request before it was being answered (until `free_since`).
        """
        parser, settings = self._parser, self._shell.settings
        if parser.phase is Phase.BETWEEN:
            return None
        if parser.phase is Phase.HEAD:
            return max(parser.began_at, free_since) + settings.head_timeout_s
        if self._body_began_at is None:
            self._body_began_at = now
        return min(now + settings.body_idle_s, self._body_began_at + settings.body_total_s)

    def drop(self) -> None:
        """Free what is held; `next` must not be called after."""
        self._held = b""
        self._parser.drop_body()
        self._count_body()

    def _feed(self, now: float) -> None:
        piece, self._held = self._held[:SLICE_BYTES], self._held[SLICE_BYTES:]
        try:
            self._parser.feed(piece, now=now)
        except RequestRefused as refusal:
            self._refusal = refusal
            self._held = b""
        self._count_body()

    def _count_body(self) -> None:
        growth = self._parser.body_bytes - self._body_bytes
        if not growth:
            return
        shell = self._shell
        shell.unfinished_body_bytes += growth
        self._body_bytes += growth
        if growth > 0 and shell.unfinished_body_bytes > shell.settings.max_unfinished_body_bytes:
            self._refusal = RequestRefused(503, "Too many large requests at once; try again later.")
