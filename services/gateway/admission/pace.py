"""How long a wait and an answer will be: measured, not configured."""

from __future__ import annotations

from collections import deque

from typing_extensions import override

KEPT = 64
"""Finished requests whose times are kept."""
QUANTILE = 0.9
"""Of their times: so long an answer is taken to take, since every second one takes longer than usual."""


class Pace:
    """Times that requests held their slots of late. By Little's law `limit ÷ mean` slots come free per second while all are held."""

    def __init__(self) -> None:
        self._seconds = _Recent()
        self._seconds_per_token = _Recent()

    @override
    def __repr__(self) -> str:
        return f"<Pace mean {self._seconds.mean} s, {QUANTILE:.0%} {self._seconds.quantile} s>"

    def held(self, seconds: float, *, work_tokens: int) -> None:
        """Count a request that gave back its slots; its work is that of one choice."""
        self._seconds.add(seconds)
        self._seconds_per_token.add(seconds / max(1, work_tokens))

    def wait_s(self, *, choices: float, limit: int) -> float:
        """Return the time until so many slots come free, 0 while nothing has been measured."""
        return max(0.0, choices) * self._seconds.mean / max(1, limit)

    def hold_s(self, *, work_tokens: int) -> float:
        """Return the time within which an answer nearly always is whole, by its own work or like others, whichever is less; 0 while
        nothing has been measured.
        """
        return min(self._seconds.quantile, self._seconds_per_token.quantile * work_tokens)


class _Recent:
    """The last values."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=KEPT)
        self.mean = 0.0
        self.quantile = 0.0

    def add(self, value: float) -> None:
        self._values.append(value)
        ranked = sorted(self._values)
        self.mean = sum(ranked) / len(ranked)
        self.quantile = ranked[int(QUANTILE * len(ranked))]
