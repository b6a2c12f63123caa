"""What an operator has done since it began."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from services.operator.fleet import Action


class Counts:
    """Passes, actions, refusals."""

    def __init__(self) -> None:
        self.passes = 0
        self.pass_s = 0.0
        """Time of all passes together."""
        self.longest_pass_s = 0.0
        self.actions: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        """Orders that hosts did not take, by `HostAnswer.refused`."""
        self.failed = 0
        """Orders and writes without an answer."""

    def passed(self, seconds: float, actions: Sequence[Action]) -> None:
        """Count a pass."""
        self.passes += 1
        self.pass_s += seconds
        self.longest_pass_s = max(self.longest_pass_s, seconds)
        self.actions.update(type(action).__name__.lower() for action in actions)
