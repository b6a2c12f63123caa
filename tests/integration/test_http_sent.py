"""When the last byte of an answer counts as handed over: at once, when a slow client has taken it, or when it never will."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

import pytest

from services.gateway.http.exchange import Exchange
from tests.support.http_shell import LOOPS, Served, Wire, make_certificate, run_on, served, until

Run = Callable[[Callable[[], Awaitable[None]]], None]
LARGE = b"x" * (8 << 20)
"""More than the kernel takes for a client that reads nothing."""


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return lambda scenario: run_on(request.param, scenario)


class Watch:
    """Answers everything with one body and notes when it was handed over."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.sent = 0

    def handle(self, exchange: Exchange) -> None:
        exchange.respond(200, self.body)
        exchange.when_sent(self._note)
        assert not self.sent, "nobody is told before the answer is even written"

    def _note(self) -> None:
        self.sent += 1


async def deaf(it: Served, **options) -> Wire:
    """Return a client that has asked and reads nothing."""
    wire = await it.wire(receive_bytes=4096, **options)
    wire.stop_reading()
    wire.get()
    await until(lambda: it.exchanges)
    await asyncio.sleep(0.1)
    return wire


def test_what_the_kernel_takes_is_sent_at_once(run):
    async def scenario():
        watch = Watch(b"small")
        async with served(watch.handle) as it:
            wire = await it.wire()
            wire.get()
            await until(lambda: it.exchanges)
            for _ in range(3):
                await asyncio.sleep(0)

            assert 1 == watch.sent
            assert b"small" == (await wire.answer()).body

    run(scenario)


@pytest.mark.parametrize("fields", [(), ("Connection: close",)])
def test_a_slow_client_has_it_when_it_has_read_it(run, fields):
    async def scenario():
        watch = Watch(LARGE)
        async with served(watch.handle) as it:
            wire = await it.wire(receive_bytes=4096)
            wire.get("/", *fields)
            await wire.head()
            await asyncio.sleep(0.1)
            assert 0 == watch.sent

            await wire.reader.readexactly(len(LARGE))

            await until(lambda: watch.sent)
            if not fields:
                watch.body, watch.sent = b"again", 0
                wire.get()
                assert b"again" == (await wire.answer()).body
                await until(lambda: watch.sent)
            assert 1 == watch.sent

    run(scenario)


def test_a_rest_too_small_to_pause_for_is_waited_for_too(run):
    async def scenario():
        told: list[int] = []
        async with served() as it:
            wire = await deaf(it)
            exchange = await it.exchange()
            exchange.start_stream()
            while not exchange.buffered_bytes:
                exchange.write(b"x" * 4000)
                await asyncio.sleep(0.001)
            exchange.end()
            exchange.when_sent(lambda: told.append(1))
            await asyncio.sleep(0.1)
            assert [] == told

            wire.resume_reading()
            await wire.answer()

            await until(lambda: told)
            assert [1] == told

    run(scenario)


@pytest.mark.parametrize("how", ["reset", "stall"])
def test_a_client_that_never_takes_it_is_waited_for_until_it_is_gone(run, how):
    async def scenario():
        watch = Watch(LARGE)
        async with served(watch.handle, write_stall_s=0.3 if how == "stall" else 30.0) as it:
            wire = await deaf(it)
            assert 0 == watch.sent

            if how == "reset":
                wire.reset()

            await until(lambda: watch.sent)
            await until(lambda: not it.server.stages())
            assert 1 == watch.sent

    run(scenario)


def test_over_tls_it_is_sent_when_the_tls_layer_has_it(run, tmp_path):
    """What waits below that layer is not shown to us."""

    async def scenario():
        cert, key = make_certificate(tmp_path)
        context = ssl.create_default_context(cafile=cert)
        watch = Watch(LARGE)
        async with served(watch.handle, tls_cert=cert, tls_key=key) as it:
            wire = await it.wire(tls=context)
            wire.get()

            assert LARGE == (await wire.answer()).body
            assert 1 == watch.sent

    run(scenario)
