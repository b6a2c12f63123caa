"""Carries the store's contract over SOCK_SEQPACKET: one message a packet, descriptors beside it, nothing trusted that arrives.

`Link` is the side of an event loop: reads by callback, never waits for a reader. Its outbox is bounded in messages and in time:
who does not read is cut off, so that nobody else waits for it. A packet that is too large, is no message or
carries more than it may also ends the connection. `shared.kv.client` is the other side.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from typing_extensions import override

from shared.kv.protocol import MAX_PACKET

M = TypeVar("M", bound=msgspec.Struct)

MAX_FDS = 16
"""Descriptors beside one packet at most; what is more is closed by the kernel."""
MAX_WAITING = 8192
"""Messages that may wait for a slow reader: keys of 8 million values."""
MAX_STALL_S = 10.0
"""How long nothing may leave while something waits."""
BURST = 64
"""Packets that are read or written at one go, before others get their turn."""
MAX_PATH_BYTES = 107
"""The kernel's bound of a Unix socket's path."""


class BadPacket(Exception):
    """What arrived breaks the contract; the connection is of no further use."""


class Ended(Exception):
    """The other side has closed, or the connection broke."""


def encode(message: msgspec.Struct) -> bytes:
    """Return the packet. Raises `ValueError` where the message is too large for one."""
    packet = msgspec.msgpack.encode(message)
    if len(packet) > MAX_PACKET:
        raise ValueError(
            f"{type(message).__name__} of {len(packet)} bytes; a packet holds {MAX_PACKET}"
        )
    return packet


def send(sock: socket.socket, packet: bytes, fds: Sequence[int] = ()) -> None:
    """Send one packet. Raises `BlockingIOError` where the other side's buffer is full, `Ended` where it is gone."""
    beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        sock.sendmsg([packet], beside, socket.MSG_NOSIGNAL)
    except BlockingIOError:
        raise
    except TimeoutError as error:
        raise Ended("no answer in time") from error
    except OSError as error:
        raise Ended(os.strerror(error.errno or 0)) from error


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Return one packet and its descriptors, which are the caller's from now on.

    Raises `BlockingIOError` where there is none, `Ended`, `BadPacket`; a packet that is refused leaves no descriptor open.
    """
    room = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)
    try:
        packet, beside, flags, _ = sock.recvmsg(MAX_PACKET, room, socket.MSG_CMSG_CLOEXEC)
    except BlockingIOError:
        raise
    except TimeoutError as error:
        raise Ended("no answer in time") from error
    except OSError as error:
        raise Ended(os.strerror(error.errno or 0)) from error
    fds = _descriptors(beside)
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        close_all(fds)
        raise BadPacket("a packet, or what came beside it, was too large")
    if not packet:
        close_all(fds)
        raise Ended("closed by the other side")
    return packet, fds


def _descriptors(beside: Sequence[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in beside:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors, also such that are none any more."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def listen(path: Path) -> socket.socket:
    """Listen at the path, for this user only; a socket that nobody listens on any more is replaced.

    Raises `OSError`, also where another process listens there.
    """
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise OSError(f"{path} is too long for a socket: {MAX_PATH_BYTES} bytes at most")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(str(path))
        except FileNotFoundError:
            pass
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        else:
            raise OSError(f"another process listens on {path}")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    before = os.umask(0o177)
    try:
        sock.bind(str(path))
    except BaseException:
        sock.close()
        raise
    finally:
        os.umask(before)
    sock.listen(64)
    sock.setblocking(False)
    return sock


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
