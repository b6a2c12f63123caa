"""How long a step may take before this engine hangs, learned from its own steps. Pure.

A chunk of prefill takes a hundred times as long as a decode step, and what the next chunk takes is not known before; so only calm times
(all streams decode, the pool has room) are learned from, and only in calm times is anything said.
"""

from __future__ import annotations

import math

from typing_extensions import override

LEAST_S = 1.5
"""With a heartbeat each half second a hung step is noticed within 2 s. Shorter pauses are the machine's."""
FACTOR = 10.0
"""Times the longest step of late: a batch grows, neighbours want the processor."""
LEAST_STEPS = 32
MEMORY_S = 300.0
"""Time in which the longest step fades to 1/e."""
LEAST_FREE_RATIO = 0.05
"""With less of the pool free, streams may be preempted and their prompts computed again: as long as a prefill."""


class Patience:
    """The longest calm step of late."""

    def __init__(self) -> None:
        self._longest_s = 0.0
        self._steps = 0
        self._step = 0
        self._age_s = 0.0
        self._was_calm = False
        self._at: float | None = None

    @override
    def __repr__(self) -> str:
        return f"<Patience {self._longest_s:.3f} s in {self._steps} steps>"

    def observe(self, step: int, step_age_s: float, *, is_calm: bool, now: float) -> None:
        """Take a look at the step counter; several times a second."""
        if self._at is not None:
            self._longest_s *= math.exp(-max(0.0, now - self._at) / MEMORY_S)
        self._at = now
        if step != self._step:
            if self._was_calm and is_calm:
                self._steps += step - self._step
                self._longest_s = max(self._longest_s, self._age_s)
            self._step = step
            self._age_s = 0.0
            self._was_calm = True
        self._age_s = max(self._age_s, step_age_s)
        self._was_calm = self._was_calm and is_calm

    def bound_s(self, *, is_calm: bool) -> float:
        """Return the age of a step beyond which the engine hangs; 0 where experience says nothing."""
        if not is_calm or self._steps < LEAST_STEPS:
            return 0.0
        return max(LEAST_S, FACTOR * self._longest_s)
