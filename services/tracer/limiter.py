"""A hard bound of traces a second. Pure; time comes in as a number.

What is offered beyond it lowers the probability with which traces are kept, so that those kept still tell how many they stand for;
the bucket behind it holds when the offer grows faster than that. Urgent traces go first; a tenth stays for the ordinary ones.
"""

from __future__ import annotations

from services.tracer.typical import Throughput

URGENT_SHARE = 0.9
BURST_S = 2.0
"""The bucket's size, in seconds of the limit."""
RESERVE_S = 0.5
"""The part of it that is for urgent traces only."""


class Limiter:
    """Two flows, urgent and ordinary, that share one limit."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._urgent = Throughput()
        self._ordinary = Throughput()
        self._tokens = per_s * BURST_S
        self._at = 0.0

    def factor(self, *, urgent: bool, offered: float, now: float) -> float:
        """Count a trace that is kept with probability `offered`, and return by how much to lower that."""
        flow = self._urgent if urgent else self._ordinary
        flow.count(now, offered)
        self._urgent.advance(now)
        wanted = self._urgent.per_s
        if urgent:
            room = self._per_s * URGENT_SHARE
        else:
            room = max(self._per_s - wanted, self._per_s * (1 - URGENT_SHARE))
            wanted = self._ordinary.per_s
        return room / wanted if wanted > room else 1.0

    def take(self, now: float, *, urgent: bool) -> bool:
        """Return whether one more trace may pass now, and count it."""
        self._tokens = min(self._per_s * BURST_S, self._tokens + (now - self._at) * self._per_s)
        self._at = now
        if self._tokens < 1.0 + (0.0 if urgent else RESERVE_S * self._per_s):
            return False
        self._tokens -= 1.0
        return True
