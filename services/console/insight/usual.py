"""What is usual in a service: how long its requests are in each stage. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shared.blame import Group, LedgerWindow, blame
from shared.blame.report import nearest_rank
from shared.messages import STAGES, Ledger, Stage

MIN_REQUESTS = 20
"""Of fewer nothing is said to be usual."""
HIGH = 0.95
MIN_SHARE = 0.05
"""A stage is called unusual only where it is at least this much of the request…"""
MIN_TIMES = 1.5
"""… and so many times what 95 of 100 requests stay below."""


class Usual(msgspec.Struct, frozen=True):
    """Finished requests of a service taken together."""

    requests: int
    high_us: list[int]
    """By stage, what 95 of 100 stay below."""
    median: Group
    """Those around the median of the wall time."""

    def unusual(self, ledger: Ledger) -> list[tuple[Stage, int]]:
        """Return the stages in which a request was uncommonly long, the longest first, with what 95 of 100 stay below."""
        longer = [
            (us, stage, high)
            for us, stage, high in zip(ledger.us, STAGES, self.high_us, strict=True)
            if us > MIN_TIMES * high and us >= MIN_SHARE * ledger.wall_us
        ]
        return [(stage, high) for _, stage, high in sorted(longer, key=lambda item: -item[0])]


def usual_of(window: LedgerWindow) -> Usual | None:
    """Return what is usual, or None where the window holds too few requests to say."""
    finished = window.finished
    if len(finished) < MIN_REQUESTS:
        return None
    columns = zip(*(one.us for one in finished), strict=True)
    return Usual(
        requests=len(finished),
        high_us=[_high(column) for column in columns],
        median=blame(window).wall[0].around,
    )


def _high(values: Sequence[int]) -> int:
    return sorted(values)[nearest_rank(len(values), HIGH)]
