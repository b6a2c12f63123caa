"""Whether the end of a request says anything about the service: the one rule for SLOs, budgets and ejections. Pure.

What a caller chooses (leaving, a deadline of its own, a request that is at fault, more than its share) never counts against a service.
"""

from __future__ import annotations

from enum import StrEnum
from typing import assert_never

from shared.messages import Ledger, Outcome

SERVER_ERROR = 500
"""HTTP statuses from here on are the server's fault."""


class Evidence(StrEnum):
    """What a request shows."""

    GOOD = "good"
    BAD = "bad"
    NONE = "none"


def evidence_of(ledger: Ledger) -> Evidence:
    """Return what a finished request shows about the service that it asked."""
    outcome = ledger.outcome
    match outcome:
        case Outcome.FINISHED:
            return Evidence.GOOD
        case Outcome.FAILED | Outcome.STOPPED:
            return Evidence.BAD
        case Outcome.EXPIRED:
            return Evidence.NONE if ledger.has_own_deadline else Evidence.BAD
        case Outcome.REFUSED:
            is_ours = ledger.status >= SERVER_ERROR and not ledger.has_own_deadline
            return Evidence.BAD if is_ours else Evidence.NONE
        case Outcome.LEFT | Outcome.INVALID:
            return Evidence.NONE
        case _:
            assert_never(outcome)
