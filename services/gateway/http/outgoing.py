"""The write side of one connection: how much waits for the client, and whether the client takes any of it. Cuts nobody itself."""

from __future__ import annotations

import asyncio


class Outgoing:
    """Counts what is sent to a transport."""

    __slots__ = ("_acked_bytes", "_progress_at", "_sent_bytes", "_transport", "is_paused")

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
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
        acked_bytes = self._sent_bytes - self.buffered_bytes
        if acked_bytes != self._acked_bytes:
            self._acked_bytes, self._progress_at = acked_bytes, now
        return now - self._progress_at >= stall_s
