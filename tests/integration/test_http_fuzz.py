"""Any bytes, cut and timed in any way, leave the HTTP server whole.

Nothing escapes into the loop, nothing leaks, and the next client is served.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.http.exchange import Exchange
from tests.support.http_shell import LOOPS, Served, make_certificate, run_on, served, until

Tls = ssl.SSLContext | None
TOKENS = (
    *(
        b"GET / HTTP/1.1\r\n",
        b"GET /later HTTP/1.1\r\n",
        b"POST /stream HTTP/1.1\r\n",
        b"POST / HTTP/1.0\r\n",
    ),
    *(
        b"HEAD /stream HTTP/1.1\r\n",
        b"OPTIONS * HTTP/1.1\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n",
        b"Host: a\r\n",
        b"Host:\r\n",
    ),
    *(
        b"Content-Length: 3\r\n",
        b"Content-Length: 99999999\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Expect: 100-continue\r\n",
    ),
    *(
        b"Connection: close\r\n",
        b"Connection: upgrade\r\nUpgrade: h2c\r\n",
        b"\r\n",
        b"\r\n\r\n",
        b"\n",
        b"\r",
        b"\0",
        b" ",
        b":",
    ),
    *(b"abc", b"3\r\nabc\r\n", b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"GET", b"HTTP/1.1", b"%"),
    *(
        b"GET /good HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /good HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
    ),
    *(b"x" * 5000, b"A: " + b"x" * 70_000),
)
PIECES = st.one_of(st.integers(0, len(TOKENS) - 1), st.binary(max_size=40))
"""A token's number instead of the token: a report stays readable."""
CLIENTS = st.lists(
    st.tuples(
        st.lists(PIECES, max_size=8),
        st.sampled_from(["close", "reset", "half_close", "stay"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


def handle(exchange: Exchange) -> None:
    """Answer at once, later, or as a stream."""
    loop = asyncio.get_running_loop()
    if exchange.path == "/later":
        loop.call_later(0.002, exchange.respond, 200, b"later")
    elif exchange.path == "/stream":
        exchange.start_stream()
        exchange.write(b"one")
        loop.call_later(0.002, exchange.write, b"two")
        loop.call_later(0.003, exchange.end if exchange.body else exchange.abort)
    else:
        exchange.respond(200, exchange.body)


async def one_client(
    it: Served, tls: Tls, pieces: list[bytes | int], ending: str, is_cut: bool
) -> None:
    """Send the pieces, at once or one by one, and end."""
    parts = [TOKENS[piece] if isinstance(piece, int) else piece for piece in pieces]
    wire = await it.wire(tls=tls)
    with suppress(ConnectionError):
        for part in parts if is_cut else [b"".join(parts)]:
            wire.send(part)
            await asyncio.sleep(0)
        if ending != "stay":
            getattr(wire, ending)()


async def good_client(it: Served, tls: Tls) -> bool:
    """Whether an ordinary request is answered; tried again where a busy machine let the short timeouts pass."""
    for _ in range(5):
        wire = await it.wire(tls=tls)
        wire.post("/good", b"still here")
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            answer = await wire.answer()
            if answer.status != 408:
                return answer.body == b"still here"
    return False


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for localhost and its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


def survive(loop: str, clients: list[Any], tls: Tls, **options: Any) -> None:
    """Let the clients do their worst."""

    async def scenario():
        limits: dict[str, Any] = dict.fromkeys(
            ("head_timeout_s", "body_idle_s", "keep_alive_s"), 0.1
        )
        async with served(handle, max_body_bytes=20_000, linger_s=0.05, **limits, **options) as it:
            async with asyncio.TaskGroup() as group:
                for pieces, ending, is_cut in clients:
                    group.create_task(one_client(it, tls, pieces, ending, is_cut))
            assert await good_client(it, tls)
            await until(lambda: not it.server.stages())
            assert 0 == it.shell.unfinished_body_bytes

    run_on(loop, scenario)


@pytest.mark.parametrize("loop", LOOPS)
@settings(max_examples=40)
@given(clients=CLIENTS)
def test_any_clients_are_survived(loop, clients):
    survive(loop, clients, None)


@pytest.mark.parametrize("loop", LOOPS)
@settings(max_examples=15)
@given(clients=CLIENTS)
def test_any_tls_clients_are_survived(loop, clients, certificate):
    cert, key = certificate
    survive(loop, clients, ssl.create_default_context(cafile=cert), tls_cert=cert, tls_key=key)
