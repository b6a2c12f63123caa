"""What a request's end shows about the service: never what its caller chose."""

from __future__ import annotations

import msgspec
import pytest

from shared.evidence import Evidence, evidence_of
from shared.messages import Outcome
from tests.contract.golden_ledger import LEDGER


@pytest.mark.parametrize(
    ("outcome", "status", "has_own_deadline", "shows"),
    [
        (Outcome.FINISHED, 200, True, Evidence.GOOD),
        (Outcome.FAILED, 502, True, Evidence.BAD),
        (Outcome.STOPPED, 503, False, Evidence.BAD),
        (Outcome.EXPIRED, 504, False, Evidence.BAD),
        (Outcome.EXPIRED, 504, True, Evidence.NONE),
        (Outcome.REFUSED, 503, False, Evidence.BAD),
        (Outcome.REFUSED, 503, True, Evidence.NONE),
        (Outcome.REFUSED, 429, False, Evidence.NONE),
        (Outcome.REFUSED, 404, False, Evidence.NONE),
        (Outcome.LEFT, 200, False, Evidence.NONE),
        (Outcome.INVALID, 400, False, Evidence.NONE),
    ],
)
def test_evidence(outcome, status, has_own_deadline, shows):
    ledger = msgspec.structs.replace(
        LEDGER, outcome=outcome, status=status, has_own_deadline=has_own_deadline
    )

    assert shows is evidence_of(ledger)
