"""How fast tokens come, smoothed; and from it how long a refused caller should stay away."""

from __future__ import annotations

import math

SMOOTHING_S = 10.0
MIN_RETRY_S = 1.0
MAX_RETRY_S = 30.0


class Pace:
    """Exponentially weighted rate of a counter: about the mean of the last `SMOOTHING_S`."""

    def __init__(self) -> None:
        self.per_s = 0.0
        self._count = 0
        self._at: float | None = None

    def update(self, count: int, *, now: float) -> None:
        """Take the counter's value at a moment."""
        if self._at is not None and now > self._at:
            elapsed_s = now - self._at
            rate = (count - self._count) / elapsed_s
            self.per_s += (rate - self.per_s) * -math.expm1(-elapsed_s / SMOOTHING_S)
        self._count, self._at = count, now


def retry_after_s(outstanding_tokens: int, tokens_per_s: float) -> float:
    """Return how long the outstanding work takes at this pace, within bounds."""
    if tokens_per_s <= 0:
        return MIN_RETRY_S
    return min(max(outstanding_tokens / tokens_per_s, MIN_RETRY_S), MAX_RETRY_S)
