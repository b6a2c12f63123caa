"""Every request has exactly one way out of here: a record when it ends, an entry when its last byte is out, a batch within 100 ms.

Entries wait while the bus is away, up to a bound; then the oldest go first, and are counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator

import msgspec
from msgspec.structs import force_setattr
from typing_extensions import override

from services.gateway.call import ApiError
from services.gateway.ledger.account import DELIVER, US
from services.gateway.ledger.entry import entry_of_call, entry_of_refusal, failed_at_last
from services.gateway.ledger.timing import Timing
from services.gateway.outlet import Caller
from services.gateway.running import RunningCall
from shared.clock import Clock
from shared.ids import GatewayId, ServiceName
from shared.messages import UNKNOWN_SERVICE, Ledger, LedgerBatch, Outcome

MAX_BATCH = 64
"""Entries of one message: of usual ones 15 KB, of the largest 256 KB, a quarter of what a NATS server takes."""
MAX_WAITING = 4096
"""Entries that wait for the bus: a megabyte, of the largest 16."""
STATUS_INTERNAL = 500
STATUS_TOO_MANY = 429


class Record(msgspec.Struct):
    """A request that has ended and whose last byte may be on its way. `close` it once that is out."""

    book: LedgerBook
    service: ServiceName
    caller: Caller
    entry: Ledger
    at_us: int
    """When its delivery began, since the first byte."""
    is_closed: bool = False

    def timing(self) -> Timing | None:
        """Return what the caller is told of its time, where it asked."""
        if not self.caller.wants_timing:
            return None
        entry, us = self.entry, self.entry.us.copy()
        wall_us = int((self.book.stamp() - self.caller.received_at) * US)
        us[DELIVER] += max(0, wall_us - self.at_us)
        return Timing(
            request=entry.request,
            us=us,
            ttft_us=entry.ttft_us,
            engine=entry.engine,
            is_estimated=entry.is_estimated,
        )

    def turn(self, error: ApiError) -> None:
        """Note that an error had to be sent in place of the whole answer."""
        self.entry = failed_at_last(self.entry, error)

    def close(self) -> None:
        """The last byte is out, or there was none to send. A second call changes nothing."""
        if self.is_closed:
            return
        self.is_closed = True
        book, entry, at_us = self.book, self.entry, self.at_us
        wall_us = int((book.stamp() - self.caller.received_at) * US)
        if wall_us > at_us:
            entry.us[DELIVER] += wall_us - at_us
        else:
            wall_us = at_us
        # The entry is not out yet, so it may still get what was not known when it was made.
        force_setattr(entry, "wall_us", wall_us)
        book.add(self.service, entry)


class LedgerBook:
    """The ledger of one gateway."""

    def __init__(
        self,
        services: Collection[str],
        *,
        stamp: Clock,
        wall_time_s: Callable[[], float],
        observe: Callable[[ServiceName, Ledger], None] = lambda _service, _entry: None,
    ) -> None:
        """`services`: those that have or had engines, a view that changes; requests for others are of the service `unknown`.

        `observe` is called with each entry once it is whole.
        """
        self._services = services
        self._observe = observe
        self._waiting: deque[tuple[ServiceName, Ledger]] = deque()
        self.stamp = stamp
        self._wall_time_s = wall_time_s
        self.unix_offset_s = 0.0
        """Wall time less the clock of stamps."""
        self.refresh()
        self.opened = 0
        """Requests that have ended."""
        self.made = 0
        """Entries made: the same but for those whose last byte is on its way."""
        self.dropped = 0
        """Entries that found no room while the bus was away, or that the bus did not take."""

    @override
    def __repr__(self) -> str:
        return f"<LedgerBook {self.made}/{self.opened} made, {len(self._waiting)} waiting>"

    @property
    def waiting(self) -> int:
        """Entries that have not left."""
        return len(self._waiting)

    def ended(self, running: RunningCall, outcome: Outcome, error: ApiError | None) -> Record:
        """Return the record of a call that ends now; its parts have left their engines and are still there."""
        entry, at_us = entry_of_call(
            running, outcome, error, ended_at=self.stamp(), unix_offset_s=self.unix_offset_s
        )
        self.opened += 1
        return Record(self, self._known(running.call.model), running.caller, entry, at_us)

    def refused(self, caller: Caller, error: ApiError | None, *, model: str = "") -> Record:
        """Return the record of a request that never became a call; `error` is none where the client left before."""
        entry, at_us = entry_of_refusal(
            caller,
            _outcome(error),
            error,
            ended_at=self.stamp(),
            unix_offset_s=self.unix_offset_s,
        )
        self.opened += 1
        return Record(self, self._known(model), caller, entry, at_us)

    def refresh(self) -> None:
        """Look at the wall clock again: somebody may have set it. About once a second."""
        self.unix_offset_s = self._wall_time_s() - self.stamp()

    def add(self, service: ServiceName, entry: Ledger) -> None:
        """Take a finished entry; for records."""
        self.made += 1
        self._observe(service, entry)
        self._waiting.append((service, entry))
        if len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()
            self.dropped += 1

    def batches(self, gateway: GatewayId) -> Iterator[LedgerBatch]:
        """Take out all entries that wait, in order within each service."""
        by_service: dict[ServiceName, list[Ledger]] = {}
        while self._waiting:
            service, entry = self._waiting.popleft()
            by_service.setdefault(service, []).append(entry)
        for service, entries in by_service.items():
            for begin in range(0, len(entries), MAX_BATCH):
                yield LedgerBatch(
                    service=service, gateway=gateway, ledgers=entries[begin : begin + MAX_BATCH]
                )

    def _known(self, model: str) -> ServiceName:
        return ServiceName(model) if model in self._services else UNKNOWN_SERVICE


def _outcome(error: ApiError | None) -> Outcome:
    """Return how a request ended that never became a call."""
    if error is None:
        return Outcome.LEFT
    if error.status == STATUS_INTERNAL:
        return Outcome.FAILED
    is_refused = error.status > STATUS_INTERNAL or error.status == STATUS_TOO_MANY
    return Outcome.REFUSED if is_refused else Outcome.INVALID
