"""Ends that nobody wished for: clients that leave, aborted answers, handlers that fail."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable

import pytest

from services.gateway.http.exchange import Exchange
from services.gateway.http.heads import BadHeader
from tests.support.http_shell import LOOPS, Wire, run_on, served, until

Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return lambda scenario: run_on(request.param, scenario)


def path_back(exchange: Exchange) -> None:
    exchange.respond(200, exchange.path.encode())


@pytest.mark.parametrize("field", ["Connection: close", "Connection: keep-alive"])
@pytest.mark.parametrize("is_streaming", [False, True])
def test_answer_to_a_client_that_reset_just_before_is_dropped_quietly(run, field, is_streaming):
    async def scenario():
        async with served() as it:
            sock = socket.create_connection(("127.0.0.1", it.port))
            sock.sendall(f"GET / HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n".encode())
            exchange = await it.exchange()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()  # the loop has not seen it when we write
            if is_streaming:
                exchange.start_stream()
                exchange.write(b"x")
                exchange.end()
            else:
                exchange.respond(200, b"x" * 100)
            await until(lambda: not it.server.stages())

    run(scenario)


@pytest.mark.parametrize("leave", [Wire.close, Wire.reset, Wire.half_close])
@pytest.mark.parametrize("is_streaming", [False, True])
def test_client_that_leaves_is_noticed_once_and_at_once(run, leave, is_streaming):
    async def scenario():
        gone: list[str] = []
        async with served() as it:
            wire = await it.wire()
            wire.post("/", b"body")
            exchange = await it.exchange()
            exchange.on_disconnect = lambda: gone.append("gone")
            if is_streaming:
                exchange.start_stream()
                await wire.head()
            leave(wire)
            await until(lambda: gone, timeout_s=1.0)
            exchange.start_stream()
            exchange.write(b"late")
            exchange.end()
            exchange.respond(200, b"late")
            exchange.abort()

            assert not exchange.is_open
            assert 0 == exchange.buffered_bytes
            assert 1 == it.server.counts.disconnects
            await until(lambda: not it.server.stages())
            assert ["gone"] == gone

    run(scenario)


def test_leaving_after_the_end_is_no_disconnect(run):
    async def scenario():
        gone: list[str] = []
        async with served() as it:
            wire = await it.wire()
            wire.get()
            exchange = await it.exchange()
            exchange.on_disconnect = lambda: gone.append("gone")
            exchange.respond(200, b"")
            await wire.answer()
            wire.close()
            await until(lambda: not it.server.stages())

            assert [] == gone
            assert 0 == it.server.counts.disconnects

    run(scenario)


def test_client_that_only_stopped_sending_gets_answers_that_are_ready(run):
    async def scenario():
        async with served(path_back) as it:
            wire = await it.wire()
            wire.send(b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n")
            wire.half_close()

            assert [b"/1", b"/2"] == [
                (await wire.answer()).body,
                (await wire.answer()).body,
            ]
            assert b"" == await wire.rest()

    run(scenario)


@pytest.mark.parametrize(
    ("version", "error"), [("1.1", asyncio.IncompleteReadError), ("1.0", ConnectionResetError)]
)
def test_aborted_stream_cannot_look_complete(run, version, error):
    async def scenario():
        async with served() as it:
            wire = await it.wire()
            wire.send(f"GET / HTTP/{version}\r\nHost: a\r\n\r\n".encode())
            exchange = await it.exchange()
            exchange.start_stream()
            exchange.write(b"one")
            await asyncio.sleep(0.01)
            exchange.abort()
            with pytest.raises(error):
                await wire.answer()
            assert not exchange.is_open

    run(scenario)


def test_what_was_written_before_an_abort_arrives(run):
    async def scenario():
        async with served() as it:
            wire = await it.wire()
            wire.get()
            exchange = await it.exchange()
            exchange.start_stream()
            exchange.write(b"error")
            exchange.abort()
            await wire.head()

            assert b"error" == await wire.chunk()
            assert b"" == await wire.rest()

    run(scenario)


def test_failing_handler_gives_500_and_harms_no_other(run):
    def handle(exchange: Exchange) -> None:
        if exchange.path == "/stream":
            exchange.start_stream()
        if exchange.path == "/header":
            exchange.respond(200, b"", headers=[("x-id", "a\r\nb: c")])
        if exchange.path != "/good":
            raise LookupError("fault of the test")
        exchange.respond(200, b"good")

    async def scenario():
        async with served(handle) as it:
            bad, good, stream, header = [await it.wire() for _ in range(4)]
            for wire, path in (
                (bad, "/bad"),
                (stream, "/stream"),
                (header, "/header"),
                (good, "/good"),
            ):
                wire.get(path)
            failed, split = await bad.answer(), await header.answer()

            assert (500, "close", b"Internal error.\n") == (
                failed.status,
                failed.headers["connection"],
                failed.body,
            )
            assert b"" == await bad.rest()
            assert 500 == split.status
            with pytest.raises(asyncio.IncompleteReadError):
                await stream.answer()
            assert b"good" == (await good.answer()).body
            assert 3 == it.server.counts.handler_errors
            assert 3 == len(it.faults)
            it.faults.clear()
            for wire in (bad, good, stream, header):
                wire.close()

    run(scenario)


def fail() -> None:
    raise LookupError("fault of the test")


def test_failing_disconnect_callback_is_reported_and_harms_no_other(run):
    async def scenario():
        async with served() as it:
            wire = await it.wire()
            wire.get()
            exchange = await it.exchange()
            exchange.on_disconnect = fail
            wire.close()
            await until(lambda: it.faults)
            assert 1 == it.server.counts.handler_errors
            it.faults.clear()

    run(scenario)


def test_misuse_is_an_error(run):
    async def scenario():
        async with served() as it:
            wire = await it.wire()
            wire.get()
            exchange = await it.exchange()
            with pytest.raises(RuntimeError, match="before start_stream"):
                exchange.write(b"a")
            with pytest.raises(RuntimeError, match="before start_stream"):
                exchange.end()
            with pytest.raises(BadHeader):
                exchange.start_stream(headers=[("a", "b\n")])
            exchange.start_stream()
            with pytest.raises(RuntimeError, match="has begun"):
                exchange.start_stream()
            with pytest.raises(RuntimeError, match="has begun"):
                exchange.respond(200, b"")
            exchange.end()
            await wire.answer()

    run(scenario)
