"""The HTTP server over real sockets, on both loops: answering, streaming, order, counts."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from services.gateway.http.exchange import Exchange
from tests.support.http_shell import LOOPS, run_on, served, until

Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return lambda scenario: run_on(request.param, scenario)


def echo(exchange: Exchange) -> None:
    """Answer at once with what was asked."""
    exchange.respond(
        200, f"{exchange.method} {exchange.path}?{exchange.query} ".encode() + exchange.body
    )


def test_requests_on_one_connection_are_answered(run):
    async def scenario():
        async with served(echo) as it:
            wire = await it.wire()
            wire.get("/a%20b?x=1")
            first = await wire.answer()
            wire.post("/c", b"body")
            second = await wire.answer()

            assert (200, b"GET /a b?x=1 ") == (first.status, first.body)
            assert b"POST /c? body" == second.body
            assert "application/json" == first.headers["content-type"]
            assert "connection" not in first.headers
            assert "headrace" == first.headers["server"]
            assert it.exchanges[0].peer.startswith("127.0.0.1:")

    run(scenario)


def test_stream_arrives_as_it_is_written(run):
    async def scenario():
        async with served() as it:
            wire = await it.wire()
            wire.get()
            exchange = await it.exchange()
            exchange.start_stream(headers=[("cache-control", "no-cache")])
            status, headers = await wire.head()
            exchange.write(b"one")
            one = await wire.chunk()
            exchange.write(b"two")
            two = await wire.chunk()
            exchange.end()

            assert (200, "chunked", "no-cache") == (
                status,
                headers["transfer-encoding"],
                headers["cache-control"],
            )
            assert "text/event-stream; charset=utf-8" == headers["content-type"]
            assert [b"one", b"two", b""] == [one, two, await wire.chunk()]
            assert not exchange.is_open
            wire.get()
            (await it.exchange(1)).respond(200, b"next")
            assert b"next" == (await wire.answer()).body

    run(scenario)


def test_writes_of_one_tick_leave_as_one_chunk(run):
    async def scenario():
        async with served() as it:
            wire = await it.wire()
            wire.get()
            exchange = await it.exchange()
            exchange.start_stream()
            exchange.write(b"a")
            exchange.write(b"b")
            assert 2 == exchange.buffered_bytes
            await wire.head()
            first = await wire.chunk()
            exchange.write(b"c")
            exchange.write(b"d")
            exchange.end()

            assert [b"ab", b"cd", b""] == [first, await wire.chunk(), await wire.chunk()]

    run(scenario)


def test_pipelined_requests_are_answered_in_order_one_at_a_time(run):
    async def scenario():
        async with served() as it:
            wire = await it.wire()
            wire.send(b"".join(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % at for at in range(5)))
            for at in range(5):
                exchange = await it.exchange(at)
                await asyncio.sleep(0.01)
                assert at + 1 == len(it.exchanges)
                exchange.respond(200, exchange.path.encode())
            assert [b"/%d" % at for at in range(5)] == [
                (await wire.answer()).body for _ in range(5)
            ]

    run(scenario)


def test_error_behind_a_pending_request_waits_for_its_answer(run):
    async def scenario():
        async with served() as it:
            wire = await it.wire()
            wire.get("/good")
            wire.send(b"garbage\r\n\r\n")
            exchange = await it.exchange()
            await asyncio.sleep(0.02)
            exchange.respond(200, b"fine")
            good, bad = await wire.answer(), await wire.answer()

            assert (200, 400) == (good.status, bad.status)
            assert b"" == await wire.rest()

    run(scenario)


def test_head_request_gets_no_body(run):
    async def scenario():
        async with served(echo) as it:
            wire = await it.wire()
            wire.send(b"HEAD /a HTTP/1.1\r\nHost: a\r\n\r\n")
            head = await wire.answer(is_head=True)
            wire.get("/b")

            assert "9" == head.headers["content-length"]
            assert b"GET /b? " == (await wire.answer()).body

    run(scenario)


def test_head_request_of_a_stream_gets_its_head_only(run):
    def stream(exchange: Exchange) -> None:
        exchange.start_stream()
        exchange.write(b"data")
        exchange.end()

    async def scenario():
        async with served(stream) as it:
            wire = await it.wire()
            wire.send(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")
            await wire.answer(is_head=True)
            wire.get()

            assert b"data" == (await wire.answer()).body

    run(scenario)


def test_status_without_body_has_no_length(run):
    async def scenario():
        async with served(lambda exchange: exchange.respond(204, b"x")) as it:
            wire = await it.wire()
            wire.send(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
            for _ in range(2):
                answer = await wire.answer()
                assert (204, b"") == (answer.status, answer.body)
                assert not {"content-length", "content-type"} & answer.headers.keys()

    run(scenario)


def test_http10_stream_ends_by_closing(run):
    async def scenario():
        async with served() as it:
            wire = await it.wire()
            wire.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            exchange = await it.exchange()
            exchange.start_stream()
            exchange.write(b"one")
            exchange.end()
            answer = await wire.answer()

            assert b"one" == answer.body
            assert "transfer-encoding" not in answer.headers
            assert "close" == answer.headers["connection"]

    run(scenario)


@pytest.mark.parametrize(
    ("field", "said"), [(b"Connection: keep-alive\r\n", "keep-alive"), (b"", "close")]
)
def test_http10_keeps_the_connection_only_when_asked(run, field, said):
    async def scenario():
        async with served(echo) as it:
            wire = await it.wire()
            wire.send(b"GET / HTTP/1.0\r\n" + field + b"\r\n")

            assert said == (await wire.answer()).headers["connection"]
            assert (said == "close") is await wire.is_closed(0.1)

    run(scenario)


def test_connection_close_is_honoured(run):
    async def scenario():
        async with served(echo) as it:
            wire = await it.wire()
            wire.get("/", "Connection: close")
            answer = await wire.answer()

            assert "close" == answer.headers["connection"]
            assert b"" == await wire.rest()

    run(scenario)


def test_continue_is_sent_when_it_is_the_requests_turn(run):
    async def scenario():
        async with served() as it:
            wire = await it.wire()
            wire.get("/first")
            wire.send(
                b"POST /second HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
            )
            first = await it.exchange()
            await asyncio.sleep(0.02)
            first.respond(200, b"one")
            assert 200 == (await wire.answer()).status
            assert (100, {}) == await wire.head()
            wire.send(b"body")
            second = await it.exchange(1)
            second.respond(200, second.body)

            assert b"body" == (await wire.answer()).body

    run(scenario)


def test_counts_and_stages_tell_what_happens(run):
    async def scenario():
        async with served() as it:
            idle, reading, waiting, streaming = [await it.wire() for _ in range(4)]
            reading.send(b"GET / HT")
            waiting.get()
            await it.exchange()
            streaming.get()
            (await it.exchange(1)).start_stream()
            await streaming.head()

            expected = {"idle": 1, "reading": 1, "waiting": 1, "streaming": 1}
            await until(lambda: Counter(expected) == it.server.stages())
            counts = it.server.counts
            assert (4, 2, {200: 1}) == (counts.connections, counts.requests, dict(counts.responses))
            for wire in (idle, reading, waiting, streaming):
                wire.close()

    run(scenario)


def test_socket_options_reach_accepted_connections(run):
    async def scenario():
        async with served() as it:
            wire = await it.wire()
            wire.get()
            exchange = await it.exchange()
            sock = exchange._connection._transport.get_extra_info("socket")

            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert 60_000 == sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            exchange.respond(200, b"")

    run(scenario)
