"""OTLP by the book: the spans of a trace built from opentelemetry-proto's classes, and collectors to send to."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from services.tracer.attributes import Attributes, AttributeValue
from services.tracer.spans import Span, Trace

SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"


def any_value(value: AttributeValue) -> AnyValue:
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case str():
            return AnyValue(string_value=value)
        case _:
            return AnyValue(array_value=ArrayValue(values=[any_value(item) for item in value]))


def key_values(pairs: Attributes) -> list[KeyValue]:
    return [KeyValue(key=name, value=any_value(value)) for name, value in pairs]


def reference_span(trace: Trace, span: Span) -> trace_pb2.Span:
    """Return a span as the classes have it."""
    made = trace_pb2.Span(
        trace_id=trace.trace_id,
        span_id=span.span_id,
        trace_state=trace.trace_state,
        parent_span_id=span.parent_id,
        name=span.name,
        kind=trace_pb2.Span.SpanKind.ValueType(int(span.kind)),
        start_time_unix_nano=span.begin_ns,
        end_time_unix_nano=span.end_ns,
        flags=span.flags,
        attributes=key_values(
            [*trace.group.pairs, *trace.shared, *span.group.pairs, *span.attributes]
        ),
        events=[
            trace_pb2.Span.Event(
                time_unix_nano=event.unix_ns,
                name=event.name,
                attributes=key_values(event.attributes),
            )
            for event in span.events
        ],
    )
    if span.error is not None:
        made.status.CopyFrom(
            trace_pb2.Status(code=trace_pb2.Status.STATUS_CODE_ERROR, message=span.error)
        )
    return made


def spans_of(request: ExportTraceServiceRequest) -> list[trace_pb2.Span]:
    """Return all spans of a request."""
    return [
        span
        for group in request.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def values_of(pairs: Sequence[KeyValue]) -> dict[str, Any]:
    """Return attributes as a dictionary."""
    return {pair.key: _plain(pair.value) for pair in pairs}


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    return getattr(value, kind or "string_value")


class Collector:
    """What a collector got, and what it answers: `answers` are taken one by one, then everything is welcome."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.sizes: list[int] = []
        self.answers: list[Any] = []
        self.url = ""

    @property
    def spans(self) -> list[trace_pb2.Span]:
        """All spans that it got."""
        return [span for request in self.requests for span in spans_of(request)]

    def take(self, body: bytes, headers: dict[str, str]) -> None:
        """Note a request."""
        self.requests.append(ExportTraceServiceRequest.FromString(body))
        self.headers.append(headers)
        self.sizes.append(len(body))


@asynccontextmanager
async def http_collector() -> AsyncIterator[Collector]:
    """Listen for OTLP over HTTP; an answer is (status, headers, body) or a coroutine to await before a welcome."""
    collector = Collector()

    async def traces(request: web.Request) -> web.Response:
        body = await request.read()
        encoded = request.headers.get("Content-Encoding") == "gzip"
        plain = gzip.decompress(body) if encoded and body[:2] == b"\x1f\x8b" else body
        status, headers, answer = (
            collector.answers.pop(0)
            if collector.answers
            else (200, {}, ExportTraceServiceResponse())
        )
        if status == 200:
            collector.take(plain, dict(request.headers))
        content = answer if isinstance(answer, bytes) else answer.SerializeToString()
        return web.Response(
            status=status,
            headers={"Content-Type": "application/x-protobuf", **headers},
            body=content,
        )

    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/v1/traces", traces)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        (address,) = runner.addresses
        collector.url = f"http://127.0.0.1:{address[1]}"
        yield collector
    finally:
        await runner.cleanup()


Failing = Callable[[grpc.aio.ServicerContext], Awaitable[None]]


@asynccontextmanager
async def grpc_collector() -> AsyncIterator[Collector]:
    """Listen for OTLP over gRPC; an answer is a response, or a coroutine function that aborts the call."""
    collector = Collector()

    async def export(
        request: ExportTraceServiceRequest, context: grpc.aio.ServicerContext
    ) -> ExportTraceServiceResponse:
        answer = collector.answers.pop(0) if collector.answers else ExportTraceServiceResponse()
        if callable(answer):
            await answer(context)
        metadata = {str(key): str(value) for key, value in context.invocation_metadata() or ()}
        collector.take(request.SerializeToString(), metadata)
        return answer

    handler = grpc.unary_unary_rpc_method_handler(
        export,
        request_deserializer=ExportTraceServiceRequest.FromString,
        response_serializer=ExportTraceServiceResponse.SerializeToString,
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {"Export": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        collector.url = f"grpc://127.0.0.1:{port}"
        yield collector
    finally:
        await server.stop(None)
