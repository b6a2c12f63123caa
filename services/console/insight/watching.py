"""`headrace top`: listens to everybody and shows what is going on, again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from services.console.insight.desk import LISTEN_S, Desk
from services.console.insight.found import founds
from services.console.insight.pulse import SPAN_S, Pulse
from services.console.insight.top_view import picture
from shared.clock import unix_time_s
from shared.errors import NoHistory
from shared.messages import (
    EngineHeartbeat,
    GatewayHeartbeat,
    LedgerBatch,
    StageBatch,
    TracerHeartbeat,
)

Show = Callable[[str], None]


async def listen(desk: Desk) -> Pulse:
    """Begin to hear everybody; the requests of the last seconds are heard already. Raises `BusError`."""
    clock = asyncio.get_running_loop().time
    pulse = Pulse(clock())
    bus = desk.bus

    def on_ledgers(batch: LedgerBatch) -> None:
        for found in founds(batch):
            pulse.hear_request(found, clock())

    await _recall(desk, pulse)
    await bus.subscribe(LedgerBatch, on_ledgers)
    await bus.subscribe(StageBatch, lambda batch: pulse.hear_steps(batch, clock()))
    await bus.subscribe(EngineHeartbeat, lambda beat: pulse.hear_engine(beat, clock()))
    await bus.subscribe(GatewayHeartbeat, lambda beat: pulse.hear_gateway(beat, clock()))
    await bus.subscribe(TracerHeartbeat, lambda beat: pulse.hear_tracer(beat, clock()))
    return pulse


async def _recall(desk: Desk, pulse: Pulse) -> None:
    """Hear what ended in the last seconds. Between this and the live messages a batch may be missed: of a view, not of an account."""
    now, wall_s = asyncio.get_running_loop().time(), unix_time_s()
    try:
        async for found in desk.requests(since_s=SPAN_S):
            age_s = wall_s - found.ended_unix_us / 1e6
            pulse.hear_request(found, now - min(SPAN_S, max(0.0, age_s)))
    except NoHistory:  # then the first pictures show less
        return
    pulse.requests_since = now - SPAN_S


async def watch(
    desk: Desk, show: Show, *, interval_s: float | None, title: str, is_over: asyncio.Event
) -> None:
    """Show a picture each interval until `is_over`, or only one without an interval. Raises `BusError`."""
    loop = asyncio.get_running_loop()
    pulse = await listen(desk)
    await _wait(is_over, LISTEN_S)
    while True:
        head = title if desk.bus.is_answering else f"{title}  (the bus does not answer)"
        show(picture(pulse.now(loop.time()), head))
        if interval_s is None or await _wait(is_over, interval_s):
            return


async def _wait(event: asyncio.Event, at_most_s: float) -> bool:
    """Return whether the event came in time."""
    try:
        async with asyncio.timeout(at_most_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
