"""How long a wait and an answer will be: measured, not configured."""

from __future__ import annotations

SMOOTHING = 0.05
"""Weight of one finished request: about the last twenty count."""


class Pace:
    """Mean time that a request holds its slots. By Little's law `limit ÷ mean` slots come free per second while all are held."""

    def __init__(self) -> None:
        self._mean_s: float | None = None
        self._mean_s_per_token = 0.0

    def held(self, seconds: float, *, work_tokens: int) -> None:
        """Count a request that gave back its slots; its work is that of one choice."""
        mean, per_token = self._mean_s, seconds / max(1, work_tokens)
        if mean is None:
            self._mean_s, self._mean_s_per_token = seconds, per_token
            return
        self._mean_s = mean + SMOOTHING * (seconds - mean)
        self._mean_s_per_token += SMOOTHING * (per_token - self._mean_s_per_token)

    def wait_s(self, *, choices: int, limit: int) -> float | None:
        """Return the time until so many slots come free, or None while nothing has been measured."""
        if self._mean_s is None:
            return None
        return max(0, choices) * self._mean_s / max(1, limit)

    def hold_s(self, *, work_tokens: int) -> float:
        """Return the least time that an answer will take, 0 while nothing has been measured: by its own work, or like others."""
        return min(self._mean_s or 0.0, self._mean_s_per_token * work_tokens)
