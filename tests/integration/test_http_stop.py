"""Starting and stopping the HTTP server: listeners, draining, deadlines."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from services.gateway.http.server import HttpServer
from services.gateway.http.settings import HttpSettings
from shared.errors import UserError
from tests.support.http_shell import LOOPS, MAX_BODY_BYTES, run_on, served, until

Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return lambda scenario: run_on(request.param, scenario)


def server_for(**settings: Any) -> HttpServer:
    return HttpServer(
        HttpSettings(**settings),
        lambda exchange: exchange.respond(200, b""),
        max_body_bytes=MAX_BODY_BYTES,
    )


def test_drain_lets_running_requests_finish_and_says_close(run):
    async def scenario():
        async with served() as it, asyncio.TaskGroup() as group:
            waiting, streaming = await it.wire(), await it.wire()
            waiting.get()
            first = await it.exchange()
            streaming.get()
            second = await it.exchange(1)
            second.start_stream()
            _, headers = await streaming.head()
            assert "connection" not in headers
            draining = group.create_task(it.server.drain(5.0))
            await asyncio.sleep(0.02)
            first.respond(200, b"done")
            second.write(b"last")
            second.end()

            answer = await waiting.answer()
            assert ("close", b"done") == (answer.headers["connection"], answer.body)
            assert [b"last", b""] == [await streaming.chunk(), await streaming.chunk()]
            assert b"" == await waiting.rest()
            assert b"" == await streaming.rest()
            waiting.close()
            streaming.close()
            assert 0 == await draining

    run(scenario)


def test_drain_serves_a_request_that_was_on_its_way_and_closes_idle_connections(run):
    async def scenario():
        async with (
            served(lambda exchange: exchange.respond(200, b"ok")) as it,
            asyncio.TaskGroup() as group,
        ):
            quiet, late = await it.wire(), await it.wire()
            late.get()
            await late.answer()
            draining = group.create_task(it.server.drain(5.0))
            await asyncio.sleep(0.05)
            late.get()
            answer = await late.answer()

            assert (200, "close") == (answer.status, answer.headers["connection"])
            assert b"" == await late.rest()
            assert b"" == await quiet.rest()
            quiet.close()
            late.close()
            assert 0 == await draining

    run(scenario)


def test_drain_drops_what_is_left_at_the_deadline(run):
    async def scenario():
        gone: list[str] = []
        async with served() as it:
            wire = await it.wire()
            wire.get()
            (await it.exchange()).on_disconnect = lambda: gone.append("gone")

            assert 1 == await it.server.drain(0.1)
            assert ["gone"] == gone
            assert await wire.is_closed(1.0)

    run(scenario)


def test_closed_listener_takes_no_connection(run):
    async def scenario():
        async with served(lambda exchange: exchange.respond(200, b"ok")) as it:
            wire, port = await it.wire(), it.port
            wire.get()
            await wire.answer()
            it.server.close_listeners()
            it.server.close_listeners()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
            wire.get()

            assert b"ok" == (await wire.answer()).body

    run(scenario)


def test_taken_port_is_named_with_what_to_do(run):
    async def scenario():
        async with served() as it:
            with pytest.raises(UserError, match=f"Port {it.port} is taken") as caught:
                await server_for(port=it.port).start()
            assert "choose another port" in caught.value.hint

    run(scenario)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"host": "127.0.0.1", "tls_cert": "/nonexistent.pem"}, "/nonexistent.pem does not exist"),
        ({"host": "127.0.0.1", "tls_cert": __file__}, "Cannot use the TLS certificate"),
        ({"host": "127.0.0..1"}, "Cannot resolve the address '127.0.0..1'"),
    ],
)
def test_setting_that_cannot_work_is_named(run, settings, message):
    async def scenario():
        with pytest.raises(UserError, match=message):
            await server_for(port=0, **settings).start()

    run(scenario)


def test_processes_share_a_port_when_told_to(run):
    async def scenario():
        async with served(reuse_port=True) as it:
            other = server_for(port=it.port, reuse_port=True)
            await other.start()
            assert it.port == other.port
            assert 0 == await other.drain(0.1)

    run(scenario)


def test_given_socket_is_served(run):
    async def scenario():
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        async with served(lambda exchange: exchange.respond(200, b"ok"), sock=sock) as it:
            assert port == it.port
            wire = await it.wire()
            wire.get()
            assert b"ok" == (await wire.answer()).body

    run(scenario)


def test_all_addresses_of_a_name_are_served(run):
    async def scenario():
        async with served(lambda exchange: exchange.respond(200, b"ok"), host="localhost") as it:
            for family, _, _, _, address in socket.getaddrinfo(
                "localhost", it.port, type=socket.SOCK_STREAM
            ):
                reader, writer = await asyncio.open_connection(
                    str(address[0]), it.port, family=family
                )
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                assert (await reader.read()).endswith(b"ok")
                writer.close()

    run(scenario)


@pytest.mark.parametrize(
    ("soft", "hard", "allowed"),
    [(400, 400, 16), (1024, 4096, 3712), (1024, 20_000, 8192), (9, 9, 1)],
)
def test_connections_are_what_the_file_limit_allows(soft, hard, allowed):
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}));"
        "print(connections_allowed(8192), resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    code = "from services.gateway.http.listeners import connections_allowed;" + code
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    ).stdout

    assert f"{allowed} ({min(hard, 8192 + 384)}, {hard})" == output.strip()


def test_server_that_was_not_started_says_so():
    with pytest.raises(RuntimeError, match="not started"):
        _ = server_for().counts


def test_idle_connection_is_closed_gently_after_keep_alive_and_not_before(run):
    async def scenario():
        async with served(lambda exchange: exchange.respond(200, b"ok"), keep_alive_s=0.3) as it:
            wire = await it.wire()
            for _ in range(3):
                wire.get()
                await wire.answer()
                await asyncio.sleep(0.15)

            assert 1 == it.server.counts.connections
            assert b"" == await wire.rest()
            wire.get()  # answered by silence, not by a reset that could hit an answer on its way
            await asyncio.sleep(0.05)
            assert not wire.reader.exception()
            wire.close()
            await until(lambda: not it.server.stages())

    run(scenario)
