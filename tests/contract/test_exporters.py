"""The port to a collector over HTTP and over gRPC, against real servers: taken, refused, asked for later, not answered."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
import uvloop
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from services.tracer import wire
from services.tracer.adapters.collectors import make_exporter
from services.tracer.ports import Exporter, Later, Never, Taken
from services.tracer.request_attributes import Context
from services.tracer.settings import OtlpSettings
from services.tracer.spans import trace_of
from shared.settings import Secret
from tests.support.nats_server import free_port
from tests.support.otlp import Collector, grpc_collector, http_collector
from tests.support.traced_ledgers import GATEWAY, SERVICE, numbered

pytestmark = pytest.mark.timeout(60)

CONTEXT = Context(service=SERVICE, gateway=GATEWAY)
REQUEST = wire.request(
    {SERVICE: [wire.spans(trace_of(numbered(n), CONTEXT)) for n in range(10)]}, version="1"
)
PARTIAL = ExportTraceServiceResponse(
    partial_success=ExportTracePartialSuccess(rejected_spans=3, error_message="too old")
)
OPEN = {"http": http_collector, "grpc": grpc_collector}
DEAD = {"http": "http://127.0.0.1:{}", "grpc": "grpc://127.0.0.1:{}"}


@asynccontextmanager
async def meeting(way: str, **settings: Any) -> AsyncIterator[tuple[Collector, Exporter]]:
    async with OPEN[way]() as collector:
        exporter = make_exporter(OtlpSettings(url=collector.url, **settings))
        assert exporter is not None
        try:
            yield collector, exporter
        finally:
            await exporter.close()
            await exporter.close()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())  # type: ignore[arg-type] # a coroutine


@pytest.mark.parametrize("compression", ["gzip", "none"])
@pytest.mark.parametrize("way", OPEN)
def test_what_is_taken_arrives_as_it_was(way, compression):
    async def scenario() -> None:
        headers = Secret("Api-Key=geheim")
        async with meeting(way, compression=compression, headers=headers) as (collector, exporter):
            answer = await exporter.export(REQUEST, timeout_s=5.0)

            assert isinstance(answer, Taken)
            assert 0 == answer.rejected_spans
            (got,) = collector.requests
            assert ExportTraceServiceRequest.FromString(REQUEST) == got
            names = {name.lower(): value for name, value in collector.headers[0].items()}
            assert "geheim" == names["api-key"]
            if way == "http":
                ratio = len(REQUEST) / answer.wire_bytes
                assert ratio > 5 if compression == "gzip" else ratio == 1

    run(scenario)


@pytest.mark.parametrize("way", OPEN)
def test_what_is_refused_in_part_is_told(way):
    async def scenario() -> None:
        async with meeting(way) as (collector, exporter):
            collector.answers = [(200, {}, PARTIAL)] if way == "http" else [PARTIAL]

            answer = await exporter.export(REQUEST, timeout_s=5.0)

            assert isinstance(answer, Taken)
            assert (3, "too old") == (answer.rejected_spans, answer.message)

    run(scenario)


def _status(seconds: int) -> bytes:
    detail = AnyMessage()
    detail.Pack(RetryInfo(retry_delay=Duration(seconds=seconds)))
    return Status(code=8, details=[detail]).SerializeToString()


def aborts(code: grpc.StatusCode, after_s: int = 0) -> Callable[[Any], Awaitable[None]]:
    """Return a gRPC collector's answer: a status, and the pause that it asks for."""

    async def abort(context: grpc.aio.ServicerContext) -> None:
        trailing = (("grpc-status-details-bin", _status(after_s)),) if after_s else ()
        await context.abort(code, "said so", trailing_metadata=trailing)

    return abort


@pytest.mark.parametrize(
    ("way", "planned", "answer"),
    [
        ("http", (503, {}, b""), Later("HTTP 503")),
        ("http", (429, {"Retry-After": "12"}, b""), Later("HTTP 429", 12.0)),
        ("http", (400, {}, b""), Never("HTTP 400")),
        ("http", (401, {"Content-Type": "text/plain"}, b"no key"), Never("HTTP 401: no key")),
        ("http", (307, {"Location": "http://192.0.2.1/"}, b""), Never("HTTP 307")),
        ("http", (500, {}, b""), Never("HTTP 500")),
        ("grpc", aborts(grpc.StatusCode.UNAVAILABLE), Later("UNAVAILABLE: said so")),
        (
            "grpc",
            aborts(grpc.StatusCode.UNAVAILABLE, 12),
            Later("UNAVAILABLE: said so", 12.0),
        ),
        (
            "grpc",
            aborts(grpc.StatusCode.RESOURCE_EXHAUSTED, 12),
            Later("RESOURCE_EXHAUSTED: said so", 12.0),
        ),
        ("grpc", aborts(grpc.StatusCode.RESOURCE_EXHAUSTED), Never("RESOURCE_EXHAUSTED: said so")),
        ("grpc", aborts(grpc.StatusCode.UNAUTHENTICATED), Never("UNAUTHENTICATED: said so")),
    ],
)
def test_what_is_not_taken_is_tried_later_or_never(way, planned, answer):
    async def scenario() -> None:
        async with meeting(way) as (collector, exporter):
            collector.answers = [planned]

            assert answer == await exporter.export(REQUEST, timeout_s=5.0)
            assert isinstance(await exporter.export(REQUEST, timeout_s=5.0), Taken)
            assert 1 == len(collector.requests)

    run(scenario)


@pytest.mark.parametrize("way", OPEN)
def test_a_collector_that_is_not_there_is_tried_later(way):
    async def scenario() -> None:
        exporter = make_exporter(OtlpSettings(url=DEAD[way].format(free_port())))
        assert exporter is not None
        try:
            assert isinstance(await exporter.export(REQUEST, timeout_s=2.0), Later)
        finally:
            await exporter.close()

    run(scenario)


@pytest.mark.parametrize("way", OPEN)
def test_a_collector_that_does_not_answer_is_left_at_the_deadline(way):
    async def scenario() -> None:
        clock = asyncio.get_running_loop().time
        with socket.create_server(("127.0.0.1", 0)) as silent:  # connects and says nothing
            exporter = make_exporter(OtlpSettings(url=DEAD[way].format(silent.getsockname()[1])))
            assert exporter is not None
            began_at = clock()
            answer = await exporter.export(REQUEST, timeout_s=0.3)
            took_s = clock() - began_at
            await exporter.close()

        assert isinstance(answer, Later)
        assert 0.2 < took_s < 2.0

    run(scenario)
