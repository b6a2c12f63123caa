"""Small batches of ledgers, for tests that care about their travel and not about their content; and how they are kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from shared.errors import NoHistory
from shared.history import History
from shared.ids import GatewayId, RequestId, ServiceName
from shared.messages import STAGES, Ledger, LedgerBatch, Outcome, Priority
from shared.typedbus import TypedBus

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


async def read(replay: AsyncIterator[LedgerBatch]) -> list[str]:
    """Return the requests of a whole replay."""
    return requests_of([batch async for batch in replay])


async def publish_kept(bus: TypedBus, reader: History, *batches: LedgerBatch) -> None:
    """Publish, and return when the server keeps it: its stream comes after it has answered the sender's flush."""
    for batch in batches:
        bus.publish(batch)
    last = batches[-1]
    async with asyncio.timeout(5):
        while requests_of([last]) != await read(  # noqa: ASYNC110 - the server tells nobody
            reader.replay(LedgerBatch, newest_first=True, limit=1, service=last.service)
        ):
            await asyncio.sleep(0.005)


async def until_kept(history: History) -> None:
    """Return when there is a stream."""
    async with asyncio.timeout(10):
        while True:
            try:
                await read(history.replay(LedgerBatch, limit=1))
            except NoHistory:
                await asyncio.sleep(0.01)
            else:
                return
