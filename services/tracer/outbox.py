"""What waits to be handed to a collector: bounded in bytes, batched, tried again with growing pauses. Pure.

Where there is no room the oldest traces go, and are counted; so a collector that is away for an hour costs those, and no memory.
One batch is under way at a time.
"""

from __future__ import annotations

from collections import deque

import msgspec

from services.tracer.ports import Answer, Later, Never, Taken
from shared.ids import ServiceName

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
LONGEST_ASKED_S = 300.0
"""Bound of the pause that a collector may ask for."""


class OutboxSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of what waits for a collector."""

    max_bytes: int = 32 << 20
    """Bound of the traces that wait, encoded and not yet compressed: about 5,000 requests. Beyond it the oldest go."""
    batch_bytes: int = 256 << 10
    """Size of a batch before compression; about 40 requests, more hardly compress better and leave the processor's cache."""
    batch_age_s: float = 1.0
    """How long a trace waits for others to share its batch."""

    def __post_init__(self) -> None:
        if not 0 < self.batch_bytes <= self.max_bytes:
            raise ValueError("batch_bytes must be above 0 and at most max_bytes")
        if self.batch_age_s < 0:
            raise ValueError("batch_age_s must not be negative")


class Parcel(msgspec.Struct, frozen=True, gc=False):
    """The encoded spans of one request."""

    service: ServiceName
    spans: bytes
    timeout_s: float
    at: float


class Batch(msgspec.Struct, frozen=True):
    """What goes to a collector at once."""

    parcels: list[Parcel]
    size: int

    @property
    def timeout_s(self) -> float:
        """The shortest deadline of those in it."""
        return min(parcel.timeout_s for parcel in self.parcels)

    def by_service(self) -> dict[ServiceName, list[bytes]]:
        """Return the spans of each service."""
        groups: dict[ServiceName, list[bytes]] = {}
        for parcel in self.parcels:
            groups.setdefault(parcel.service, []).append(parcel.spans)
        return groups


class OutboxCounts:
    """What became of traces since the start."""

    __slots__ = ("dropped", "exported", "rejected", "retries")

    def __init__(self) -> None:
        self.exported = 0
        self.dropped = 0
        """No room while the collector was slow or away."""
        self.rejected = 0
        """The collector did not want them and would not later."""
        self.retries = 0


class Outbox:
    """Traces that wait, and the batch under way."""

    def __init__(self, settings: OutboxSettings) -> None:
        self._settings = settings
        self._waiting: deque[Parcel] = deque()
        self._waiting_bytes = 0
        self._sending: Batch | None = None
        self._pause_s = 0.0
        self._not_before = 0.0
        self.counts = OutboxCounts()

    def __len__(self) -> int:
        return len(self._waiting) + (len(self._sending.parcels) if self._sending else 0)

    @property
    def held_bytes(self) -> int:
        """Encoded bytes that are kept, the batch under way included."""
        return self._waiting_bytes + (self._sending.size if self._sending else 0)

    def add(self, parcel: Parcel) -> None:
        """Take one trace in; the oldest make room for it."""
        self._waiting.append(parcel)
        self._waiting_bytes += len(parcel.spans)
        while self.held_bytes > self._settings.max_bytes and self._waiting:
            self._waiting_bytes -= len(self._waiting.popleft().spans)
            self.counts.dropped += 1

    def due_at(self) -> float | None:
        """Return when a batch may be taken; None: nothing waits, or one is under way."""
        if self._sending is not None or not self._waiting:
            return None
        full = self._waiting_bytes >= self._settings.batch_bytes
        ready_at = self._waiting[0].at + (0.0 if full else self._settings.batch_age_s)
        return max(ready_at, self._not_before)

    def take(self) -> Batch:
        """Return the next batch, which is under way from now on. At least one trace must wait, and none be under way."""
        assert self._sending is None
        parcels: list[Parcel] = []
        size = 0
        while self._waiting and (not parcels or size < self._settings.batch_bytes):
            parcel = self._waiting.popleft()
            parcels.append(parcel)
            size += len(parcel.spans)
        self._waiting_bytes -= size
        self._sending = Batch(parcels, size)
        return self._sending

    def settle(self, answer: Answer, *, now: float, draw: float) -> None:
        """Say what became of the batch under way. `draw`, 0 to 1, spreads the pauses of several tracers."""
        batch, self._sending = self._sending, None
        assert batch is not None
        match answer:
            case Taken():
                self.counts.exported += len(batch.parcels)
                self._pause_s = 0.0
            case Never():
                self.counts.rejected += len(batch.parcels)
                self._pause_s = 0.0
            case Later(after_s=asked_s):
                self.counts.retries += 1
                self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s or FIRST_PAUSE_S)
                pause_s = self._pause_s * (0.5 + draw)
                if asked_s is not None:
                    pause_s = max(pause_s, min(asked_s, LONGEST_ASKED_S))
                self._not_before = now + pause_s
                self._put_back(batch)

    def _put_back(self, batch: Batch) -> None:
        """Let the batch wait again at its old place; what has no room any more are its oldest."""
        room = self._settings.max_bytes - self._waiting_bytes
        for parcel in reversed(batch.parcels):
            room -= len(parcel.spans)
            if room < 0:
                self.counts.dropped += 1
                continue
            self._waiting.appendleft(parcel)
            self._waiting_bytes += len(parcel.spans)
