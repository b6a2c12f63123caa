"""A connection inside an event loop: reads by callback, never waits for a reader.

Its outbox is bounded in messages and in time: who does not read is cut off, so that nobody else waits for it.
A packet that is too large, is no message or carries more than it may also ends the connection.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from typing_extensions import override

from shared.kv.seqpacket import BadPacket, Ended, close_all, encode, receive, send

M = TypeVar("M", bound=msgspec.Struct)

MAX_WAITING = 8192
"""Messages that may wait for a slow reader: keys of 8 million values."""
MAX_STALL_S = 10.0
"""How long nothing may leave while something waits."""
BURST = 64
"""Packets that are read or written at one go, before others get their turn."""


class Link(Generic[M]):
    """One connection inside an event loop. `on_message` gets each message with its descriptors and owns them; `on_end` is called once."""

    def __init__(
        self,
        sock: socket.socket,
        kind: Any,
        *,
        on_message: Callable[[M, list[int]], None],
        on_end: Callable[[str], None],
        max_waiting: int = MAX_WAITING,
        max_stall_s: float = MAX_STALL_S,
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kind)
        self._on_message = on_message
        self._on_end = on_end
        self._max_waiting = max_waiting
        self._max_stall_s = max_stall_s
        self._loop = asyncio.get_running_loop()
        self._urgent: deque[tuple[msgspec.Struct, list[int]]] = deque()
        self._waiting: deque[tuple[msgspec.Struct, list[int]]] = deque()
        self._stalled: asyncio.TimerHandle | None = None
        self._ended = False
        self._loop.add_reader(sock.fileno(), self._read)

    @override
    def __repr__(self) -> str:
        return f"<Link {'ended' if self._ended else 'open'} waiting={self.waiting}>"

    @property
    def is_open(self) -> bool:
        """Return whether messages can still go either way."""
        return not self._ended

    @property
    def waiting(self) -> int:
        """Return how many messages wait for the other side to read."""
        return len(self._urgent) + len(self._waiting)

    def send(
        self, message: msgspec.Struct, fds: Sequence[int] = (), *, urgent: bool = False
    ) -> None:
        """Send when the other side has room; urgent messages pass those that are not. Descriptors are closed once sent.

        A reader for whom too much waits is cut off. Nothing happens on an ended connection.
        """
        if self._ended:
            close_all(fds)
            return
        (self._urgent if urgent else self._waiting).append((message, list(fds)))
        if self.waiting > self._max_waiting:
            self.end("does not read: too much waits for it")
        elif self._stalled is None:
            self._write()

    def end(self, reason: str) -> None:
        """Close, and tell `on_end`; what waits is lost. A second call changes nothing."""
        if self._ended:
            return
        self._ended = True
        self._loop.remove_reader(self._sock.fileno())
        self._relax()
        self._sock.close()
        for _, fds in (*self._urgent, *self._waiting):
            close_all(fds)
        self._urgent.clear()
        self._waiting.clear()
        self._on_end(reason)

    def drain(self) -> None:
        """Take in what has arrived, without waiting for the loop."""
        self._read()

    def _read(self) -> None:
        for _ in range(BURST):
            if self._ended:
                return
            try:
                packet, fds = receive(self._sock)
            except BlockingIOError:
                return
            except (Ended, BadPacket) as error:
                self.end(str(error))
                return
            try:
                message = self._decoder.decode(packet)
            except (msgspec.DecodeError, RecursionError) as error:
                close_all(fds)
                self.end(f"is no message: {error}")
                return
            self._on_message(message, fds)

    def _write(self) -> None:
        for _ in range(BURST):
            queue = self._urgent or self._waiting
            if not queue:
                self._relax()
                return
            message, fds = queue[0]
            try:
                send(self._sock, encode(message), fds)
            except BlockingIOError:
                break
            except Ended as error:
                self.end(str(error))
                return
            queue.popleft()
            close_all(fds)
            if self._stalled is not None:
                self._arm()
        if self._stalled is None:
            self._loop.add_writer(self._sock.fileno(), self._write)
            self._arm()

    def _arm(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        self._stalled = self._loop.call_later(self._max_stall_s, self.end, "does not read")

    def _relax(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
            self._loop.remove_writer(self._sock.fileno())
