"""Which class has the next turn, and how many turns go by until a place in one of the queues has its own.

Strict order between classes, except that a waiting class is passed over only so many times in a row. How many of the turns a class gets
under that rule depends on what else arrives, so it is counted.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from typing_extensions import override

from services.gateway.admission.verdict import AdmissionSettings, AdmitReason
from shared.messages import Priority

ORDER = tuple(Priority)
"""Highest class first: the order of the enum."""

SMOOTHING = 0.02
"""Weight of one turn in the share of a class: about the last fifty count."""


class Turns:
    """Counts who had turns while who else waited."""

    def __init__(self, settings: AdmissionSettings) -> None:
        self._passed = dict.fromkeys(ORDER, 0)
        self._share = dict.fromkeys(ORDER, 1.0)
        self._patience = {
            Priority.INTERACTIVE: math.inf,
            Priority.DEFAULT: settings.default_passed_over,
            Priority.BATCH: settings.batch_passed_over,
        }

    @override
    def __repr__(self) -> str:
        shares = ", ".join(f"{each} {share:.2f}" for each, share in self._share.items())
        return f"<Turns {shares}>"

    def next(self, waiting: Collection[Priority]) -> tuple[Priority, AdmitReason]:
        """Return whose turn it is among those that wait (not none): a class that was passed over too often, else the highest."""
        overdue = max(waiting, key=lambda p: self._passed[p] / self._patience[p])
        if self._passed[overdue] >= self._patience[overdue]:
            return overdue, AdmitReason.OVERDUE
        return min(waiting, key=ORDER.index), AdmitReason.TURN

    def had(self, served: Priority, *, still_waiting: Collection[Priority]) -> None:
        """Count a turn. A class that does not wait is taken to get all turns again, little by little: nothing tells otherwise."""
        for priority in ORDER:
            is_passed_over = priority is not served and priority in still_waiting
            self._passed[priority] = self._passed[priority] + 1 if is_passed_over else 0
            self._share[priority] += SMOOTHING * (
                (0.0 if is_passed_over else 1.0) - self._share[priority]
            )

    def until(self, priority: Priority, *, own: int, higher: int) -> float:
        """Estimate the turns until so many of a class have had theirs, while so many wait in higher classes."""
        # Those that wait in higher classes go first, but no class is passed over more often than its patience allows.
        most = own * (self._patience[priority] + 1)
        return min(most, max(own + higher, own / self._share[priority]))
