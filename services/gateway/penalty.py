"""A grudge that fades: how much recent failures of an engine count. Errors of the client's making are never charged."""

from __future__ import annotations

HALF_LIFE_S = 10.0
MAX_LEVEL = 6.0
"""Beyond this one more failure says nothing new; an engine at the bound is back at level 1 after 26 s."""


class Penalty:
    """Number of recent failures, each halved every `HALF_LIFE_S`."""

    __slots__ = ("_at", "_level")

    def __init__(self) -> None:
        self._level = 0.0
        self._at = 0.0

    def level(self, *, now: float) -> float:
        """Return the faded number of failures; 0 is a clean record."""
        if self._level == 0.0:
            return 0.0
        return float(self._level * 0.5 ** (max(0.0, now - self._at) / HALF_LIFE_S))

    def add(self, *, now: float, weight: float = 1.0) -> None:
        """Charge a failure."""
        self._level = min(MAX_LEVEL, self.level(now=now) + weight)
        self._at = now
