"""A histogram for hot paths. Pure.

Values are only appended to a list at first. Each `SETTLE` of them, and before a scrape, they are sorted and counted by a few calls for
all of them: a quarter of the time that a search for each takes (`bench/request_metrics.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

SETTLE = 512
"""Values that may wait to be counted."""


class Spread:
    """A histogram: how many values are at most each bound, and the sum of all."""

    __slots__ = ("_bounds_us", "_pending", "at_most", "bounds", "count", "put", "sum_us")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        """In seconds, ascending."""
        self._bounds_us = [bound * 1e6 for bound in bounds]
        self._pending: list[float] = []
        self.put = self._pending.append
        """Take a value, in microseconds; counted by `settle`."""
        self.at_most = [0] * len(bounds)
        self.count = 0
        self.sum_us = 0.0

    @property
    def waiting(self) -> int:
        """Values that were put and are not counted yet: whoever puts settles at `SETTLE`."""
        return len(self._pending)

    def settle(self) -> None:
        """Count what was put."""
        if self._pending:
            self.take(self._pending)
            self._pending.clear()

    def take(self, values_us: Iterable[float]) -> None:
        """Count values at once."""
        ordered = sorted(values_us)
        self.at_most = [
            have + bisect_right(ordered, bound)
            for have, bound in zip(self.at_most, self._bounds_us, strict=True)
        ]
        self.count += len(ordered)
        self.sum_us += sum(ordered)

    def add(self, other: Spread) -> None:
        """Add another one of the same bounds."""
        self.at_most = [mine + its for mine, its in zip(self.at_most, other.at_most, strict=True)]
        self.count += other.count
        self.sum_us += other.sum_us
