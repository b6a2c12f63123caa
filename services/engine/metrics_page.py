"""A page for Prometheus on a loopback port: `GET /metrics` and nothing else, one request a connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from prometheus_client.registry import Collector

from shared import metrics
from shared.errors import UserError
from shared.metrics import CONTENT_TYPE
from shared.typedbus import TypedBus

LOOPBACK = "127.0.0.1"
_READ_S = 5.0
_MAX_HEAD_BYTES = 16 << 10


def page_of(bus: TypedBus, own: Collector) -> Callable[[], bytes]:
    """Return what renders the page of an engine: the process's and the bus's figures, and its own."""
    registry = metrics.new_registry("engine")
    registry.register(metrics.BusCollector(bus))
    registry.register(own)
    return partial(metrics.render, registry)


@asynccontextmanager
async def serve_page(port: int, render: Callable[[], bytes]) -> AsyncIterator[None]:
    """Listen on the port meanwhile; 0: on none. Raises `UserError` where the port is taken."""
    if not port:
        yield
        return

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_READ_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_response(head, render))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return
        finally:
            writer.close()

    try:
        server = await asyncio.start_server(on_connection, LOOPBACK, port, limit=_MAX_HEAD_BYTES)
    except OSError as error:
        raise UserError(
            f"cannot listen on {LOOPBACK}:{port}: {error.strerror}",
            hint="choose another metrics_port, or 0 for none",
        ) from error
    async with server:
        yield


def _response(head: bytes, render: Callable[[], bytes]) -> bytes:
    is_metrics = head.startswith((b"GET /metrics ", b"GET /metrics?"))
    body = render() if is_metrics else b"only GET /metrics\n"
    status = "200 OK" if is_metrics else "404 Not Found"
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode() + body
