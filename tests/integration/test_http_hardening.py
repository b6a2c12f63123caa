"""What hostile, broken and slow clients get from the HTTP server, over real sockets on both loops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from services.gateway.http.connection import TURNED_AWAY_AT_ONCE
from services.gateway.http.exchange import Exchange
from services.gateway.http.intake import HELD_BYTES
from tests.support.http_shell import LOOPS, run_on, served, until

Run = Callable[[Callable[[], Awaitable[None]]], None]
MIB = 1 << 20


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return lambda scenario: run_on(request.param, scenario)


def ok(exchange: Exchange) -> None:
    exchange.respond(200, b"ok")


REFUSED = {
    "garbage": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "both framings": (
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "body too large": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999\r\n\r\n", 413),
    "chunks too large": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n200000\r\n"
        + b"x" * 2 * MIB,
        413,
    ),
    "target too long": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
    "expectation": (b"GET / HTTP/1.1\r\nHost: a\r\nExpect: tea\r\n\r\n", 417),
    "fields too large": (b"GET / HTTP/1.1\r\nHost: a\r\nA: " + b"a" * 70_000 + b"\r\n\r\n", 431),
    "too many fields": (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * 201 + b"\r\n", 431),
    "method": (b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", 501),
    "version": (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
}


@pytest.mark.parametrize(("data", "status"), REFUSED.values(), ids=REFUSED.keys())
def test_bad_request_is_answered_counted_and_closed(run, data, status):
    def as_json(status: int, message: str) -> tuple[str, bytes]:
        return "application/json", b'{"status":%d}' % status

    async def scenario():
        async with served(ok, error_body=as_json, max_body_bytes=MIB) as it:
            wire = await it.wire()
            wire.send(data)
            answer = await wire.answer()

            assert (status, "close") == (answer.status, answer.headers["connection"])
            assert b'{"status":%d}' % status == answer.body
            assert b"" == await wire.rest()
            assert {status: 1} == dict(it.server.counts.refused)
            assert [] == it.exchanges

    run(scenario)


def test_answer_survives_a_client_that_goes_on_uploading(run):
    async def scenario():
        async with served(ok, max_body_bytes=MIB, linger_s=2.0) as it:
            wire = await it.wire()
            wire.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20000000\r\n\r\n")
            for _ in range(20):
                wire.send(b"x" * 500_000)
                await asyncio.sleep(0.005)
            assert 413 == (await wire.answer()).status
            wire.close()
            await until(lambda: not it.server.stages())

    run(scenario)


def test_client_that_never_closes_is_closed_after_lingering(run):
    async def scenario():
        async with served(ok, linger_s=0.1) as it:
            wire = await it.wire()
            wire.get("/", "Connection: close")
            await wire.answer()
            await until(lambda: not it.server.stages(), timeout_s=2.0)

    run(scenario)


@pytest.mark.parametrize(
    ("sent", "settings"),
    [
        (b"GET / HTTP/1.1\r\nHos", {"head_timeout_s": 0.2}),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc", {"body_idle_s": 0.2}),
    ],
)
def test_request_that_stops_arriving_gets_408(run, sent, settings):
    async def scenario():
        async with served(ok, **settings) as it:
            wire = await it.wire()
            wire.send(sent)
            answer = await wire.answer()

            assert (408, "close") == (answer.status, answer.headers["connection"])
            assert b"" == await wire.rest()

    run(scenario)


@pytest.mark.parametrize(
    ("start", "drop", "settings"),
    [
        (b"GET / HTTP/1.1\r\n", b"A: b\r\n", {"head_timeout_s": 0.3}),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 999\r\n\r\n",
            b"x",
            {"body_idle_s": 0.2, "body_total_s": 0.4},
        ),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;",
            b"x",
            {"body_idle_s": 0.2, "body_total_s": 0.4},
        ),
    ],
    ids=["head", "body", "chunk extension"],
)
def test_request_that_trickles_gets_408(run, start, drop, settings):
    async def scenario():
        async with served(ok, **settings) as it:
            wire = await it.wire()
            wire.send(start)

            async def trickle() -> None:
                while True:
                    await asyncio.sleep(0.05)
                    wire.send(drop)

            async with asyncio.TaskGroup() as group:
                dripping = group.create_task(trickle())
                assert 408 == (await wire.answer()).status
                dripping.cancel()

    run(scenario)


@pytest.mark.parametrize("sent", [b"", b"\r\n\r\n\r\n"])
def test_silent_connection_is_closed_without_a_word(run, sent):
    async def scenario():
        async with served(ok, head_timeout_s=0.2) as it:
            wire = await it.wire()
            wire.send(sent)
            assert b"" == await wire.rest()

    run(scenario)


def test_slow_answer_is_not_hurried(run):
    async def scenario():
        names = ("head_timeout_s", "body_idle_s", "body_total_s", "keep_alive_s", "write_stall_s")
        limits: dict[str, Any] = dict.fromkeys(names, 0.1)
        async with served(**limits) as it:
            wire = await it.wire()
            wire.post("/", b"abc")
            exchange = await it.exchange()
            await asyncio.sleep(0.4)
            exchange.start_stream()
            await asyncio.sleep(0.4)
            exchange.write(b"late")
            exchange.end()
            assert b"late" == (await wire.answer()).body

    run(scenario)


def test_connection_over_the_limit_is_told_and_the_others_go_on(run):
    async def scenario():
        async with served(ok, max_connections=2) as it:
            first, second, third = [await it.wire() for _ in range(3)]
            answer = await third.answer()

            assert (503, "close", "1") == (
                answer.status,
                answer.headers["connection"],
                answer.headers["retry-after"],
            )
            assert b"" == await third.rest()
            for wire in (first, second):
                wire.get()
                assert 200 == (await wire.answer()).status
            assert 1 == it.server.counts.connections_refused
            first.close()
            third.close()
            await until(lambda: it.server.stages().total() == 1)
            fourth = await it.wire()
            fourth.get()
            assert 200 == (await fourth.answer()).status
            second.close()
            fourth.close()

    run(scenario)


def test_flood_of_connections_is_dropped(run):
    async def scenario():
        async with served(ok, max_connections=1, linger_s=5.0, backlog=1024) as it:
            wires = [await it.wire() for _ in range(TURNED_AWAY_AT_ONCE + 20)]
            await until(lambda: it.server.counts.connections_refused >= TURNED_AWAY_AT_ONCE + 19)

            assert it.server.stages().total() <= TURNED_AWAY_AT_ONCE + 1
            wires[0].get()
            assert 200 == (await wires[0].answer()).status
            for wire in wires:
                wire.close()
            await until(lambda: not it.server.stages())

    run(scenario)


def test_flood_of_pipelined_requests_is_held_back_and_then_served(run):
    async def scenario():
        count, request = (
            20_000,
            b"GET / HTTP/1.1\r\nHost: a\r\nX-Filler: " + b"x" * 200 + b"\r\n\r\n",
        )
        async with served() as it:
            wire = await it.wire()
            wire.send(request * count)
            first = await it.exchange()
            await asyncio.sleep(0.2)
            connection = first._connection
            # What was read before the loop paused reading is at most one read more.
            assert len(connection._intake._held) <= HELD_BYTES + 256 * 1024
            assert len(connection._intake._parser.ready) < 400
            assert not connection._transport.is_reading()
            it.shell.handler = ok
            first.respond(200, b"ok")
            for _ in range(count):
                assert 200 == (await wire.answer()).status

    run(scenario)


def test_client_that_asks_but_never_reads_is_served_only_so_much(run):
    async def scenario():
        async with served(
            lambda exchange: exchange.respond(200, b"x" * 100_000), write_stall_s=0.5
        ) as it:
            wire = await it.wire(receive_bytes=4096)
            wire.stop_reading()
            wire.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 2000)
            await until(lambda: it.exchanges)
            await asyncio.sleep(0.3)

            assert len(it.exchanges) < 200
            await until(lambda: it.server.counts.slow_clients == 1)
            await until(lambda: not it.server.stages())

    run(scenario)


def test_stream_to_a_client_that_does_not_read_is_cut_at_the_bound(run):
    async def scenario():
        gone: list[str] = []
        async with served(max_write_buffer_bytes=MIB) as it:
            wire = await it.wire(receive_bytes=4096)
            wire.stop_reading()
            wire.get()
            exchange = await it.exchange()
            exchange.on_disconnect = lambda: gone.append("gone")
            exchange.start_stream()
            most = 0
            for _ in range(2000):
                exchange.write(b"x" * 10_000)
                await asyncio.sleep(0)
                most = max(most, exchange.buffered_bytes)
                if not exchange.is_open:
                    break

            assert MIB * 0.9 < most < MIB + 30_000
            assert ["gone"] == gone
            assert (1, 1) == (it.server.counts.slow_clients, it.server.counts.disconnects)

    run(scenario)


def test_client_that_reads_nothing_for_long_is_cut_below_the_bound(run):
    async def scenario():
        async with served(write_stall_s=0.3, max_write_buffer_bytes=64 * MIB) as it:
            wire = await it.wire(receive_bytes=4096)
            wire.stop_reading()
            wire.get()
            exchange = await it.exchange()
            exchange.start_stream()
            exchange.write(b"x" * 8 * MIB)
            await until(lambda: not exchange.is_open, timeout_s=3.0)

            assert 1 == it.server.counts.slow_clients

    run(scenario)


def test_client_that_reads_slowly_gets_everything(run):
    async def scenario():
        async with served(
            lambda exchange: exchange.respond(200, b"x" * 6 * MIB), write_stall_s=0.4, linger_s=0.1
        ) as it:
            wire = await it.wire(receive_bytes=65_536)
            wire.get("/", "Connection: close")
            await wire.head()
            got = 0
            while piece := await wire.reader.read(200_000):
                got += len(piece)
                await asyncio.sleep(0.02)

            assert 6 * MIB == got

    run(scenario)


def test_unfinished_bodies_are_bounded_together(run):
    async def scenario():
        async with served(ok, max_unfinished_body_bytes=3 * MIB) as it:
            wires = [await it.wire() for _ in range(4)]
            for wire in wires:
                wire.send(
                    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000001\r\n\r\n"
                    + b"x" * 1_000_000
                )
            await until(lambda: it.server.counts.refused[503] == 1)
            await until(lambda: it.shell.unfinished_body_bytes == 3_000_000)
            statuses = []
            for wire in wires:
                with suppress(ConnectionError):
                    wire.send(b"x")
                statuses.append((await wire.answer()).status)
                wire.close()

            assert [200, 200, 200, 503] == sorted(statuses)
            await until(lambda: not it.server.stages())
            assert 0 == it.shell.unfinished_body_bytes

    run(scenario)


def test_large_requests_have_their_turn_one_in_a_tick(run):
    async def scenario():
        loop = asyncio.get_running_loop()
        this_tick: list[Exchange] = []
        together: list[int] = []

        def handler(exchange: Exchange) -> None:
            if not this_tick:
                loop.call_soon(this_tick.clear)
            this_tick.append(exchange)
            together.append(len(this_tick))
            exchange.respond(200, b"%d" % len(exchange.body))

        async with served(handler, max_body_bytes=8 * MIB) as it:
            wires = [await it.wire() for _ in range(6)]
            for wire in wires:
                wire.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1048576\r\n\r\n")
                wire.send(b"x" * (MIB - 1))
            await until(lambda: it.shell.unfinished_body_bytes == 6 * (MIB - 1))
            for wire in wires:
                wire.send(b"x")
            answers = [await wire.answer() for wire in wires]

            assert [b"1048576"] * 6 == [answer.body for answer in answers]
            assert [1] * 6 == together

    run(scenario)
