"""The port below the typed bus: subjects and bytes. The NATS wire and the memory wire implement it with the same semantics.

At most once, in order for each sender and subject, at most `max_payload` bytes. Knows no message type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

Receive = Callable[[str, bytes, str, Mapping[str, str] | None], None]
"""Called on the loop with (subject, payload, reply subject or "", headers or None). Must not raise."""

STATUS_HEADER = "Status"
NO_RESPONDERS_STATUS = "503"
"""What a NATS server answers to a request on a subject without a listener."""


class Wanted(Protocol):
    """Who waits for the reply to a frame; a future is one."""

    def done(self) -> bool:
        """Whether nobody waits any more. No side effect."""
        ...


class BusCounts:
    """What happened on a bus since it was opened."""

    __slots__ = ("handler_errors", "losses", "refused", "undecodable", "unsent")

    def __init__(self) -> None:
        self.undecodable = 0
        self.handler_errors = 0
        self.losses = 0
        self.refused = 0
        self.unsent = 0


class Listening(Protocol):
    """Interest in a pattern."""

    async def close(self) -> None:
        """Stop receiving; what has arrived and is not handled yet is dropped. A second call changes nothing."""
        ...

    async def drain(self) -> None:
        """Stop receiving after what has arrived was handled. A second call changes nothing."""
        ...


class Wire(Protocol):
    """A connection that carries bytes."""

    counts: BusCounts

    def send(
        self,
        subject: str,
        payload: bytes,
        *,
        reply: str = "",
        headers: dict[str, str] | None = None,
        wanted: Wanted | None = None,
    ) -> None:
        """Send without waiting. A frame that still waits when `wanted` is done is dropped. Raises `BusFull`, `BusClosed`, `TooBig`."""
        ...

    async def listen(self, pattern: str, receive: Receive, *, queue: str = "") -> Listening:
        """Receive what matches; interest is active at the server on return. Raises `BusClosed`."""
        ...

    def new_inbox(self) -> str:
        """Return a fresh prefix for reply subjects."""
        ...

    async def flush(self, *, timeout_s: float) -> None:
        """Return when the server has seen all that was sent. Raises `RequestTimeout`, `BusClosed`."""
        ...

    @property
    def is_connected(self) -> bool:
        """Whether a frame would leave now."""
        ...

    @property
    def is_answering(self) -> bool:
        """Whether the server has answered lately; false also where the connection stands but nothing comes."""
        ...

    @property
    def max_payload(self) -> int:
        """Largest payload in bytes."""
        ...

    async def close(self) -> None:
        """End at once. A second call changes nothing."""
        ...
