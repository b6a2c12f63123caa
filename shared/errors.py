"""Error families by who can act. Library exceptions are translated into these in the adapters, cause kept."""

from __future__ import annotations


class HeadraceError(Exception):
    """Base of all errors that Headrace raises on purpose; the message says what to change."""


class UserError(HeadraceError):
    """Ours to report, the user's to repair: bad input, bad settings, a taken port. Shown without a traceback."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class BusError(HeadraceError):
    """Base of bus errors: try again later, or elsewhere."""


class BusClosed(BusError):
    """The bus was closed or never connected."""


class BusFull(BusError):
    """The outbound buffer is at its bound: the server is away or too slow."""


class TooBig(BusError):
    """The encoded message is larger than the server takes."""

    def __init__(self, payload_bytes: int, max_bytes: int) -> None:
        super().__init__(f"message of {payload_bytes} bytes; the NATS server takes {max_bytes}")
        self.payload_bytes = payload_bytes
        self.max_bytes = max_bytes


class Undecodable(BusError):
    """The bytes are no message of the wanted type."""


class NoResponder(BusError):
    """Nobody listens on the subject."""


class NoHistory(BusError):
    """The server keeps none of what was published: no JetStream there, no such stream, or no right to it. Live delivery is as ever."""


class Conflict(BusError):
    """Somebody else wrote the record meanwhile: read it again, then decide again."""


class RequestTimeout(BusError):
    """No reply within the deadline."""


class RemoteBusy(BusError):
    """The other side has too many calls under way."""


class RemoteFailed(BusError):
    """The other side raised; its message is ours."""
