"""Peers that vanish without a word, as when a cable is pulled or a NAT forgets: their connections end within the time that is promised."""

from __future__ import annotations

import asyncio
import time

from services.gateway.http.exchange import Exchange
from tests.support.http_shell import Served, Wire, run_on, served

UNACKED_S = 1.5


async def cut_after_s(exchange: Exchange) -> float:
    """Return how long it takes until the client counts as gone."""
    gone, began = asyncio.Event(), time.monotonic()
    exchange.on_disconnect = gone.set
    async with asyncio.timeout(10 * UNACKED_S):
        await gone.wait()
    return time.monotonic() - began


async def streamed_to(it: Served) -> float:
    """Stream to a client that vanishes."""
    wire = await it.wire()
    wire.get()
    exchange = await it.exchange(0)
    exchange.start_stream()
    await wire.head()
    wire.vanish()
    exchange.write(b"never acknowledged")
    return await cut_after_s(exchange)


async def waiting(it: Served) -> float:
    """Have a client vanish while its answer is being made, so that nothing is sent."""
    wire = await it.wire()
    wire.get()
    exchange = await it.exchange(1)
    wire.vanish()
    return await cut_after_s(exchange)


def test_a_peer_that_vanishes_is_cut_in_time_and_one_that_is_only_silent_is_not():
    async def scenario() -> None:
        async with served(unacked_s=UNACKED_S) as it:
            async with asyncio.TaskGroup() as group:
                streaming = group.create_task(streamed_to(it))
                await it.exchange(0)
                silently = group.create_task(waiting(it))
                await it.exchange(1)
                silent: Wire = await it.wire()
                silent.get()
                patient = await it.exchange(2)

            assert UNACKED_S * 0.9 < streaming.result() < UNACKED_S * 2
            assert UNACKED_S * 0.9 < silently.result() < UNACKED_S * 2.5
            assert patient.is_open
            patient.respond(200, b"here")
            assert b"here" == (await silent.answer()).body

    run_on("uvloop", scenario)
