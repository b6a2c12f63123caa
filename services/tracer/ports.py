"""The port to a collector, and what it may answer."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Taken(msgspec.Struct, frozen=True):
    """The collector has the traces; some spans it may have refused for good."""

    rejected_spans: int = 0
    message: str = ""
    """What it said of the refused ones, or as a warning."""
    wire_bytes: int = 0
    """Size of the compressed request; 0: not known."""


class Later(msgspec.Struct, frozen=True):
    """It could not be reached, did not answer in time, or asks to try again."""

    why: str
    after_s: float | None = None
    """The pause that it asks for."""


class Never(msgspec.Struct, frozen=True):
    """It does not want these traces, and would not later."""

    why: str


Answer = Taken | Later | Never


class Exporter(Protocol):
    """Hands traces to one collector."""

    async def export(self, request: bytes, *, timeout_s: float) -> Answer:
        """Send an encoded `ExportTraceServiceRequest` and return what came of it within the deadline.

        Raises nothing that a collector or the network can cause. The same traces may be sent twice: the spans have the same ids.
        """
        ...

    async def close(self) -> None:
        """Close connections. A second call changes nothing."""
        ...
