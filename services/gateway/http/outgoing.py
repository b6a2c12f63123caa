"""The write side of one connection: how much waits for the client, and whether the client takes any of it. Cuts nobody itself."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from typing import Final

_INT: Final = struct.Struct("i")
_RESET: Final = struct.pack("ii", 1, 0)


class Outgoing:
    """Counts what is sent to a transport."""

    __slots__ = ("_acked_bytes", "_progress_at", "_sent_bytes", "_sock", "_transport", "is_paused")

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._sock: socket.socket = transport.get_extra_info("socket")
        self._sent_bytes = 0
        self._acked_bytes = 0
        self._progress_at = 0.0
        self.is_paused = False
        """Whether more waits than the transport likes (64 KiB)."""

    @property
    def buffered_bytes(self) -> int:
        """Not yet taken by the kernel."""
        return self._transport.get_write_buffer_size()

    def send(self, data: bytes) -> None:
        """Hand bytes to the transport."""
        self._sent_bytes += len(data)
        self._transport.write(data)

    def watch(self, now: float) -> None:
        """Begin to judge progress."""
        self._progress_at = now

    def is_stalled(self, now: float, *, stall_s: float) -> bool:
        """Whether the client took nothing for so long; progress made since the last call is noted."""
        acked_bytes = self._sent_bytes - self.buffered_bytes - self._kernel_bytes()
        if acked_bytes != self._acked_bytes:
            self._acked_bytes, self._progress_at = acked_bytes, now
        return now - self._progress_at >= stall_s

    def reset_on_close(self) -> None:
        """Have closing look like a failure to the client, not like an end."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def _kernel_bytes(self) -> int:
        """Return what the kernel holds for the client, else a slow one shows no progress until a third of megabytes has drained."""
        try:
            answer = fcntl.ioctl(self._sock.fileno(), termios.TIOCOUTQ, _INT.pack(0))
        except (OSError, ValueError):  # not on this platform, or closed just now
            return 0
        return int(_INT.unpack(answer)[0])
