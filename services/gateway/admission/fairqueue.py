"""The waiting requests of one class, in the order of a fair share between tenants (start-time fair queueing).

Each tenant's turn costs its work in tokens; who has had less goes first; a tenant that was idle starts at the present, so it
neither saves up
credit nor loses any. Goyal, Vin, Cheng, "Start-time fair queueing" (SIGCOMM 1996). Within a tenant: first in, first out.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator

from typing_extensions import override

from services.gateway.admission.verdict import Offer, Ticket
from shared.ids import TenantId

IDLE_KEPT = 256
"""Idle tenants whose mark is remembered before those that no longer matter are dropped."""


class Waiting:
    """An offer and when it began to wait."""

    __slots__ = ("offer", "since")

    def __init__(self, offer: Offer, since: float) -> None:
        self.offer = offer
        self.since = since


class Line:
    """One tenant's requests and its mark on the common scale of tokens had."""

    __slots__ = ("in_heap", "mark", "waiting")

    def __init__(self, mark: float) -> None:
        self.waiting: OrderedDict[Ticket, Waiting] = OrderedDict()
        self.mark = mark
        self.in_heap = False


class FairQueue:
    """A queue with removal from anywhere; its bound is kept by the gate."""

    def __init__(self) -> None:
        self._lines: dict[TenantId, Line] = {}
        self._heap: list[tuple[float, int, TenantId]] = []
        self._pushes = 0
        self._present = 0.0
        self._size = 0
        self.choices = 0
        """Slots wanted by all that wait."""
        self.tenants = 0
        """Tenants with something waiting."""

    def __len__(self) -> int:
        return self._size

    @override
    def __repr__(self) -> str:
        return f"<FairQueue {self._size} requests of {self.tenants} tenants>"

    def lines(self) -> Iterator[list[Offer]]:
        """Yield each tenant's requests in their order."""
        for line in self._lines.values():
            if line.waiting:
                yield [waiting.offer for waiting in line.waiting.values()]

    def waiting_of(self, tenant: TenantId) -> int:
        """Return how many requests of a tenant wait."""
        line = self._lines.get(tenant)
        return 0 if line is None else len(line.waiting)

    def push(self, offer: Offer, *, now: float) -> None:
        """Append to the tenant's line."""
        line = self._lines.get(offer.tenant)
        if line is None:
            line = self._lines[offer.tenant] = Line(self._present)
        if not line.waiting:
            line.mark = max(line.mark, self._present)
            self.tenants += 1
        line.waiting[offer.ticket] = Waiting(offer, now)
        self._size += 1
        self.choices += offer.choices
        self._enter_heap(offer.tenant, line)

    def peek(self) -> Waiting | None:
        """Return whose turn it is."""
        while self._heap:
            line = self._lines[self._heap[0][2]]
            if line.waiting:
                return next(iter(line.waiting.values()))
            heapq.heappop(self._heap)
            line.in_heap = False
        return None

    def take(self) -> Waiting:
        """Remove and return whose turn it is; only after `peek` found somebody."""
        _, _, tenant = heapq.heappop(self._heap)
        line = self._lines[tenant]
        line.in_heap = False
        _, head = line.waiting.popitem(last=False)
        self._left(line, head)
        self._present = max(self._present, line.mark)
        line.mark = max(line.mark, self._present) + max(1, head.offer.work_tokens)
        if line.waiting:
            self._enter_heap(tenant, line)
        elif len(self._lines) > self.tenants + IDLE_KEPT:
            self._drop_idle()
        return head

    def remove(self, offer: Offer) -> bool:
        """Take a request out of its line; False where it does not wait here."""
        line = self._lines.get(offer.tenant)
        waiting = None if line is None else line.waiting.pop(offer.ticket, None)
        if line is None or waiting is None:
            return False
        self._left(line, waiting)
        return True

    def _left(self, line: Line, waiting: Waiting) -> None:
        self._size -= 1
        self.choices -= waiting.offer.choices
        if not line.waiting:
            self.tenants -= 1

    def _enter_heap(self, tenant: TenantId, line: Line) -> None:
        if not line.in_heap:
            line.in_heap = True
            self._pushes += 1
            heapq.heappush(self._heap, (line.mark, self._pushes, tenant))

    def _drop_idle(self) -> None:
        """Forget tenants whose mark the present has passed: they would start at the present anyway."""
        idle = [
            tenant
            for tenant, line in self._lines.items()
            if not line.waiting and not line.in_heap and line.mark <= self._present
        ]
        for tenant in idle:
            del self._lines[tenant]
