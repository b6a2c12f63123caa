"""How long a wait will be: measured, not configured."""

from __future__ import annotations

SMOOTHING = 0.05
"""Weight of one finished request: about the last twenty count."""


class Pace:
    """Mean time that a request holds its slots. By Little's law `limit ÷ mean` slots come free per second while all are held."""

    def __init__(self) -> None:
        self._mean_s: float | None = None

    def held(self, seconds: float) -> None:
        """Count a request that gave back its slots."""
        mean = self._mean_s
        self._mean_s = seconds if mean is None else mean + SMOOTHING * (seconds - mean)

    def wait_s(self, *, choices: int, limit: int) -> float | None:
        """Return the time until so many slots come free, or None while nothing has been measured."""
        if self._mean_s is None:
            return None
        return max(0, choices) * self._mean_s / max(1, limit)
