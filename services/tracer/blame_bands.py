"""Which requests are typical, slow and slowest, and what their time went to. Pure.

A quantile of a stage says nothing about the quantile of the whole: the stage that is worst for somebody need not be the one that
makes the slowest requests slow. So each request is put into a band by its whole duration, and the stages are summed per band:
seconds of a stage ÷ requests of the band is that stage's part of the band's latency.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import StrEnum

from shared.messages import STAGES

WINDOW = 1024
"""The last requests, of whose durations the quantiles are taken."""
LEAST = 20
"""Requests from which on there are bands."""
REFRESH = 256
"""Requests between two looks at the window; at the beginning fewer."""


class Band(StrEnum):
    """Requests by their duration among the last ones."""

    P50 = "p50"
    """The middle half: from the 25th to the 75th percentile."""
    P95 = "p95"
    """Beyond the 95th, up to the 99th."""
    P99 = "p99"
    """Beyond the 99th."""


BANDS = tuple(Band)
_P50, _P95, _P99 = range(3)
_QUANTILES = (0.25, 0.75, 0.95, 0.99)


class BlameBands:
    """The bands of one service and class."""

    __slots__ = ("_pending", "_window", "edges_us", "requests", "stage_us")

    def __init__(self) -> None:
        self._window: deque[int] = deque(maxlen=WINDOW)
        self._pending: list[tuple[int, Sequence[int]]] = []
        self.edges_us: tuple[int, ...] = ()
        """Durations at the 25th, 75th, 95th and 99th percentile; empty: too few requests so far."""
        self.requests = [0] * len(BANDS)
        self.stage_us = [[0] * len(STAGES) for _ in BANDS]
        """By band and stage."""

    def observe(self, wall_us: int, stages_us: Sequence[int]) -> None:
        """Take a request that ran to its end."""
        self._pending.append((wall_us, stages_us))
        if len(self._pending) >= min(REFRESH, max(LEAST, len(self._window))):
            self._refresh()

    def settle(self) -> None:
        """Put what waits into its bands; those that came before there were bands wait on."""
        if self.edges_us:
            self._refresh()

    def _refresh(self) -> None:
        """Judge those that wait by the window before them, then move the window on."""
        if self.edges_us:
            self._sort_in()
        self._window.extend(wall_us for wall_us, _ in self._pending)
        self._pending.clear()
        ordered = sorted(self._window)
        self.edges_us = tuple(ordered[int(q * len(ordered))] for q in _QUANTILES)

    def _sort_in(self) -> None:
        low, high, slow, slowest = self.edges_us
        rows: list[list[Sequence[int]]] = [[] for _ in BANDS]
        for wall_us, stages_us in self._pending:
            # Beyond, not at: where all take the same time, nobody is slow.
            if wall_us > slow:
                rows[_P99 if wall_us > slowest else _P95].append(stages_us)
            elif low <= wall_us <= high:
                rows[_P50].append(stages_us)
        for band, members in enumerate(rows):
            self.requests[band] += len(members)
            for stage, column in enumerate(zip(*members, strict=True)):
                self.stage_us[band][stage] += sum(column)
