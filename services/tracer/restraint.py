"""How far the tracer takes itself back because of its own cost. Pure.

Its CPU time is measured in windows and divided by the engines that it serves. Above 2% of a core per engine each window halves the
shares of ordinary traces, and after three halvings only failures are kept; above 15% that holds at once. It comes back step by step.
"""

from __future__ import annotations

WINDOW_S = 10.0
SOFT = 0.02
HARD = 0.15
CALM = SOFT / 2
"""Below it for `CALM_WINDOWS` windows: one step back."""
CALM_WINDOWS = 3
HALVINGS = 3
_LAST = HALVINGS + 1


class Restraint:
    """The present step: 0 none, up to `HALVINGS` halved shares, then failures only."""

    def __init__(self) -> None:
        self._step = 0
        self._calm = 0
        self.share = 0.0
        """Of a core per engine, in the last window."""

    @property
    def level(self) -> int:
        """See `TracerHeartbeat.level`."""
        return 2 if self.only_failures else min(1, self._step)

    @property
    def only_failures(self) -> bool:
        """Whether nothing but failures is kept."""
        return self._step == _LAST

    @property
    def factor(self) -> float:
        """By how much to lower the share of ordinary traces."""
        return 0.0 if self.only_failures else 0.5**self._step

    def measure(self, cpu_s: float, *, window_s: float, engines: int) -> None:
        """Take in the CPU time of a window."""
        self.share = cpu_s / window_s / max(1, engines)
        self._calm = self._calm + 1 if self.share < CALM else 0
        if self.share > HARD:
            self._step = _LAST
        elif self.share > SOFT:
            self._step = min(_LAST, self._step + 1)
        elif self._calm >= CALM_WINDOWS:
            self._step = max(0, self._step - 1)
            self._calm = 0
