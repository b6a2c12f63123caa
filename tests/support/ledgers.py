"""Small batches of ledgers, for tests that care about their travel and not about their content."""

from __future__ import annotations

from shared.ids import GatewayId, RequestId, ServiceName
from shared.messages import STAGES, Ledger, LedgerBatch, Outcome, Priority

GATEWAY = GatewayId("g8899aabbccddeeff")


def ledgers(service: str, *requests: str, trace_state: str = "") -> LedgerBatch:
    """Return a batch of requests that took a millisecond."""
    return LedgerBatch(
        service=ServiceName(service),
        gateway=GATEWAY,
        ledgers=[
            Ledger(
                request=RequestId(request),
                began_unix_us=1_796_000_000_000_000,
                wall_us=1_000,
                us=[1_000, *[0] * (len(STAGES) - 1)],
                outcome=Outcome.FINISHED,
                priority=Priority.DEFAULT,
                door="http",
                kind="chat",
                status=200,
                trace_state=trace_state,
            )
            for request in requests
        ],
    )


def requests_of(batches: list[LedgerBatch]) -> list[str]:
    """Return the requests in batches, in their order."""
    return [ledger.request for batch in batches for ledger in batch.ledgers]
