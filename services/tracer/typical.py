"""What is usual for a service: how long its requests take and how many there are a second. Pure; time comes in as a number."""

from __future__ import annotations

from math import log

WARM = 200
"""Requests after which quantiles mean something."""
FULL = 4096
"""Counts are halved at this many, so that the past fades: about the last six thousand requests matter."""
EVERY = 64
"""How many requests share one computation of the quantiles."""
_GROWTH = 1.1
"""Ratio of two neighbouring bounds: quantiles are right within 10%."""
_BUCKETS = 256
_SCALE = 1.0 / log(_GROWTH)
_SMOOTH = 0.3
"""Weight of the newest second in the rate."""


class Durations:
    """Quantiles of durations in microseconds, in logarithmic buckets with fading counts."""

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self._total = 0
        self._fresh = 0
        self.seen = 0
        self.p50_us = 0.0
        self.p99_us = 0.0

    @property
    def is_known(self) -> bool:
        """Whether enough was seen for the quantiles to mean something."""
        return self.seen >= WARM

    def observe(self, us: int) -> None:
        """Count one duration."""
        self._counts[min(_BUCKETS - 1, int(log(max(1, us)) * _SCALE))] += 1
        self._total += 1
        self.seen += 1
        self._fresh += 1
        if self._fresh >= EVERY:
            self._compute()

    def _compute(self) -> None:
        self._fresh = 0
        if self._total >= FULL:
            self._counts = [count // 2 for count in self._counts]
            self._total = sum(self._counts)
        # The bounds of the bucket that leave its own durations between: neither below p50 nor above p99.
        self.p50_us = self._quantile(0.5) / _GROWTH
        self.p99_us = self._quantile(0.99)

    def _quantile(self, share: float) -> float:
        """Return the upper bound of the bucket that the quantile is in."""
        wanted, passed = share * self._total, 0
        for index, count in enumerate(self._counts):
            passed += count
            if passed >= wanted:
                return float(_GROWTH ** (index + 1))
        return float(_GROWTH**_BUCKETS)


class Throughput:
    """Events a second, smoothed over a few seconds."""

    def __init__(self) -> None:
        self._second = 0
        self._count = 0.0
        self.per_s = 0.0

    def count(self, now: float, amount: float = 1.0) -> None:
        """Count events at `now`."""
        self.advance(now)
        self._count += amount

    def advance(self, now: float) -> None:
        """Close the seconds that are over; quiet ones count too."""
        passed = int(now) - self._second
        if passed <= 0:
            return
        weight = _SMOOTH if self.per_s else 1.0
        self.per_s += weight * (self._count - self.per_s)
        self.per_s *= (1 - _SMOOTH) ** min(passed - 1, 100)
        self._second, self._count = int(now), 0.0
