"""Packets of the store's contract over SOCK_SEQPACKET: one message each, descriptors beside it, nothing trusted that arrives.

`shared.kv.link` is a connection inside an event loop, `shared.kv.client` the engine's side.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec

from shared.kv.protocol import MAX_PACKET

MAX_FDS = 16
"""Descriptors beside one packet at most; what is more is closed by the kernel."""
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
