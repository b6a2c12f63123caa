"""Real clients against the HTTP server: httpx2 (which OpenAI's client uses), aiohttp, the standard library, curl; also over TLS."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import httpx2
import pytest

from services.gateway.http.exchange import Exchange
from services.gateway.http.server import HttpServer
from services.gateway.http.settings import HttpSettings
from shared.errors import UserError
from tests.support.http_shell import (
    LOOPS,
    MAX_BODY_BYTES,
    make_certificate,
    run_on,
    served,
    until,
)

Run = Callable[[Callable[[], Awaitable[None]]], None]
BIG = bytes(range(256)) * 12_000


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return lambda scenario: run_on(request.param, scenario)


def handle(exchange: Exchange) -> None:
    """`/stream` counts slowly, `/big` is large, all else comes back as it went."""
    if exchange.path == "/stream":
        exchange.start_stream()
        step(exchange, 0)
    elif exchange.path == "/big":
        exchange.respond(200, BIG, content_type="application/octet-stream")
    else:
        said = {"method": exchange.method, "path": exchange.path, "query": exchange.query}
        exchange.respond(200, json.dumps(said | {"body_bytes": len(exchange.body)}).encode())


def step(exchange: Exchange, number: int) -> None:
    """Write an event, and the next one a little later."""
    if number == 5:
        exchange.end()
        return
    exchange.write(b"data: %d\n\n" % number)
    asyncio.get_running_loop().call_later(0.005, step, exchange, number + 1)


EVENTS = "".join(f"data: {number}\n\n" for number in range(5))


async def pieces() -> AsyncIterator[bytes]:
    """A body without a length."""
    for _ in range(10):
        yield b"x" * 1000


def test_httpx(run):
    async def scenario():
        async with (
            served(handle) as it,
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{it.port}") as client,
        ):
            for _ in range(3):
                answer = await client.post("/a b", params={"q": "ä"}, content=b"x" * 100_000)
                expected = {
                    "method": "POST",
                    "path": "/a b",
                    "query": "q=%C3%A4",
                    "body_bytes": 100_000,
                }
                assert expected == answer.json()
            assert 10_000 == (await client.post("/", content=pieces())).json()["body_bytes"]
            assert BIG == (await client.get("/big")).content
            async with client.stream("POST", "/stream", json={}) as stream:
                assert EVENTS == "".join([text async for text in stream.aiter_text()])
            answers = await asyncio.gather(*[client.get(f"/{at}") for at in range(50)])
            assert [f"/{at}" for at in range(50)] == [answer.json()["path"] for answer in answers]

    run(scenario)


def test_httpx_that_stops_reading_in_mid_stream_is_noticed(run):
    async def scenario():
        gone: list[str] = []
        async with (
            served() as it,
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{it.port}") as client,
        ):

            async def ask() -> None:
                async with client.stream("POST", "/") as stream:
                    async for _ in stream.aiter_raw():
                        return

            async with asyncio.TaskGroup() as group:
                group.create_task(ask())
                exchange = await it.exchange()
                exchange.on_disconnect = lambda: gone.append("gone")
                exchange.start_stream()
                exchange.write(b"data")
            await until(lambda: gone)

    run(scenario)


def test_aiohttp(run):
    async def scenario():
        async with (
            served(handle) as it,
            aiohttp.ClientSession(f"http://127.0.0.1:{it.port}") as client,
        ):
            for _ in range(3):
                async with client.post("/a", data=b"x" * 100_000, expect100=True) as answer:
                    assert 100_000 == (await answer.json())["body_bytes"]
            async with client.post("/", data=pieces()) as answer:
                assert 10_000 == (await answer.json())["body_bytes"]
            async with client.get("/big") as answer:
                assert BIG == await answer.read()
            async with client.get("/stream") as answer:
                assert EVENTS == "".join(
                    [chunk.decode() async for chunk in answer.content.iter_any()]
                )
            assert 1 == it.server.counts.connections

    run(scenario)


def test_standard_library(run):
    def ask(port: int) -> None:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        for _ in range(2):
            client.request("POST", "/a", body=b"abc", headers={"Content-Type": "application/json"})
            assert 3 == json.load(client.getresponse())["body_bytes"]
        client.request(
            "POST",
            "/b",
            body=iter([b"abc", b"def"]),
            encode_chunked=True,
            headers={"Transfer-Encoding": "chunked"},
        )
        assert 6 == json.load(client.getresponse())["body_bytes"]
        client.request("HEAD", "/big")
        answer = client.getresponse()
        assert str(len(BIG)) == answer.headers["content-length"]
        assert b"" == answer.read()
        client.request("GET", "/stream")
        assert EVENTS == client.getresponse().read().decode()
        client.close()

    async def scenario():
        async with served(handle) as it:
            await asyncio.to_thread(ask, it.port)
            assert 1 == it.server.counts.connections

    run(scenario)


@pytest.mark.parametrize(
    ("options", "path", "expected"),
    [
        (["-d", "abc"], "/a", '"body_bytes": 3'),
        (["-N"], "/stream", EVENTS),
        (["-N", "--http1.0"], "/stream", EVENTS),
        (["-d", "x" * 5000, "-H", "Expect: 100-continue"], "/", '"body_bytes": 5000'),
        (["-T", "-", "-X", "POST"], "/", '"body_bytes": 10'),
        (["--http2", "-d", "abc"], "/", '"body_bytes": 3'),
        (["--http2"], "/", '"body_bytes": 0'),
        (["-I"], "/big", f"content-length: {len(BIG)}"),
        (["-H", "Connection: close"], "/", '"path": "/"'),
    ],
)
def test_curl(run, options, path, expected):
    if shutil.which("curl") is None:
        pytest.skip("curl is missing")

    async def scenario():
        async with served(handle) as it:
            command = [
                "curl",
                "-sS",
                "--max-time",
                "10",
                *options,
                f"http://127.0.0.1:{it.port}{path}",
            ]
            child = await asyncio.create_subprocess_exec(
                *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            output, _ = await child.communicate(b"0123456789")

            assert expected in output.decode()
            assert 0 == child.returncode

    run(scenario)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for localhost and its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


def test_tls(run, certificate):
    cert, key = certificate

    async def scenario():
        trust = ssl.create_default_context(cafile=cert)
        async with served(handle, tls_cert=cert, tls_key=key) as it:
            base = f"https://localhost:{it.port}"
            async with httpx2.AsyncClient(base_url=base, verify=trust) as client:
                assert BIG == (await client.get("/big")).content
                assert EVENTS == (await client.get("/stream")).text
                async with client.stream(
                    "GET", "/stream", headers={"connection": "close"}
                ) as stream:
                    assert EVENTS == "".join([text async for text in stream.aiter_text()])
            # Plain text on a TLS port is turned away, and the next client is served.
            reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert not (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()
            async with httpx2.AsyncClient(base_url=base, verify=trust) as client:
                assert 200 == (await client.get("/")).status_code
            assert trust.minimum_version >= ssl.TLSVersion.TLSv1_2

    run(scenario)


def test_tls_client_that_leaves_is_noticed(run, certificate):
    cert, key = certificate

    async def scenario():
        gone: list[str] = []
        async with served(tls_cert=cert, tls_key=key) as it:
            trust = ssl.create_default_context(cafile=cert)
            reader, writer = await asyncio.open_connection("localhost", it.port, ssl=trust)
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            exchange = await it.exchange()
            exchange.on_disconnect = lambda: gone.append("gone")
            exchange.start_stream()
            await reader.readuntil(b"\r\n\r\n")
            writer.close()
            await until(lambda: gone)
            await until(lambda: not it.server.stages())

    run(scenario)


def test_key_that_does_not_fit_is_named(certificate):
    cert, _ = certificate

    async def scenario():
        with pytest.raises(UserError, match="Cannot use the TLS certificate"):
            await HttpServer(
                HttpSettings(port=0, tls_cert=cert), handle, max_body_bytes=MAX_BODY_BYTES
            ).start()

    run_on("asyncio", scenario)
