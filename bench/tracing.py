"""What tracing costs: requests a second that a tracer turns into compressed OTLP on one core, and bytes a request on the wire.

Ours is the whole service on a memory bus: bytes of ledger batches in, every trace kept, gzipped requests out. The peer in the same run is
OpenTelemetry's SDK: the same thirteen spans with the same attributes, its batch processor, its encoder, gzip at its level.
CPU time, the best of several rounds, all on one core. Prints a table to stderr and JSON to stdout.

    python bench/tracing.py [--requests 4000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import gzip
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import msgspec  # noqa: E402 - needs the path above
import uvloop  # noqa: E402
from google.protobuf.json_format import MessageToDict  # noqa: E402
from opentelemetry import trace as otel  # noqa: E402
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans  # noqa: E402
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (  # noqa: E402
    ExportTraceServiceRequest,
)
from opentelemetry.sdk.resources import Resource  # noqa: E402
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import (  # noqa: E402
    BatchSpanProcessor,
    SpanExporter,
    SpanExportResult,
)

from bench.support.processes import machine  # noqa: E402
from services.tracer import wire  # noqa: E402
from services.tracer.adapters import otlp_http  # noqa: E402
from services.tracer.outbox import OutboxSettings  # noqa: E402
from services.tracer.ports import Answer, Taken  # noqa: E402
from services.tracer.request_attributes import Context  # noqa: E402
from services.tracer.service import TracerService  # noqa: E402
from services.tracer.settings import TracerSettings  # noqa: E402
from services.tracer.spans import Kind, Span, Trace, trace_of  # noqa: E402
from shared.codec import decode, encode  # noqa: E402
from shared.ids import EngineId, GatewayId, RequestId, ServiceName, TracerId  # noqa: E402
from shared.membus import MemoryBus, MemoryHub  # noqa: E402
from shared.messages import (  # noqa: E402
    STAGES,
    ChoiceRecord,
    Ledger,
    LedgerBatch,
    Outcome,
    Priority,
)
from shared.observability import Observability, Policies  # noqa: E402

SERVICE, GATEWAY = ServiceName("smollm2"), GatewayId("g0123456789abcdef")
CPU = time.process_time
LEDGERS = 50
"""In one message of a gateway."""
BATCH_BYTES = OutboxSettings().batch_bytes
SDK_GZIP_LEVEL = 9
"""That of Python's `gzip.compress`, which the SDK's HTTP exporter uses."""
BATCHES = (1, 10, 100)


def ledgers(count: int) -> list[Ledger]:
    """Return requests as they are: ids, times and counts of each its own."""
    draw = random.Random(7)
    made = []
    for number in range(count):
        us = [draw.randrange(20, 4_000) for _ in STAGES]
        us[6:9] = [draw.randrange(10_000, 90_000), draw.randrange(100_000, 2_000_000), 0]
        prompt, answer = draw.randrange(20, 4_000), draw.randrange(1, 600)
        cached = draw.randrange(0, prompt)
        made.append(
            Ledger(
                request=RequestId(f"chatcmpl-{draw.randbytes(12).hex()}"),
                began_unix_us=1_796_000_000_123_456 + number * 5_431,
                wall_us=sum(us),
                us=us,
                outcome=Outcome.FINISHED,
                priority=Priority.DEFAULT,
                door="http",
                kind="chat",
                status=200,
                trace_id=draw.randbytes(16),
                span_id=draw.randbytes(8),
                is_streamed=True,
                ttft_us=sum(us[:7]),
                engine=EngineId(f"e{draw.randrange(4):016x}"),
                version="1",
                backend="vllm",
                choices=[ChoiceRecord(index=0, tokens=answer, finish="stop")],
                prompt_tokens=prompt,
                completion_tokens=answer,
                cached_tokens=cached,
                prefill_tokens=prompt - cached,
                first_step=draw.randrange(90_000),
                last_step=draw.randrange(90_000, 99_000),
                batch_size=draw.random() * 60,
                kv_blocks=draw.randrange(300),
                mode="FLASH_ATTN/graph",
                max_tokens=600,
                max_token_gap_us=draw.randrange(20_000, 90_000),
            )
        )
    return made


def traces(made: Sequence[Ledger]) -> list[Trace]:
    """Return the traces of these requests."""
    context = Context(service=SERVICE, gateway=GATEWAY, trace_state="ot=th:0", reason="usual")
    return [trace_of(one, context) for one in made]


# --- ours


class Counting:
    """An exporter that compresses and counts, and sends nothing."""

    def __init__(self) -> None:
        self.raw_bytes = 0
        self.wire_bytes = 0

    async def export(self, request: bytes, *, timeout_s: float) -> Answer:
        """See `Exporter.export`."""
        body = otlp_http.gzip(request)
        self.raw_bytes += len(request)
        self.wire_bytes += len(body)
        return Taken(wire_bytes=len(body))

    async def close(self) -> None:
        """See `Exporter.close`."""


async def ours(made: Sequence[Ledger]) -> float:
    """Return the CPU seconds from ledger bytes to compressed OTLP."""
    payloads = [
        encode(LedgerBatch(service=SERVICE, gateway=GATEWAY, ledgers=list(made[n : n + LEDGERS])))
        for n in range(0, len(made), LEDGERS)
    ]
    exporter = Counting()
    async with asyncio.TaskGroup() as group:
        service = TracerService(
            TracerSettings(max_traces_per_s=1e9, outbox=OutboxSettings(batch_age_s=0.0)),
            await MemoryBus.join(MemoryHub(), group=group, name="tracer"),
            exporter,
            policies=Policies(default=Observability(sampling_rate=1.0)),
            tracer=TracerId("t"),
            cpu_clock=CPU,
        )
        began_s = CPU()
        for payload in payloads:
            service.on_ledgers(decode(LedgerBatch, payload))
            while service.outbox.held_bytes >= BATCH_BYTES:
                await service.ship()
        while len(service.outbox):
            await service.ship()
        spent_s = CPU() - began_s
    assert service.outbox.counts.exported == len(made)
    return spent_s


# --- the peer


class SdkExporter(SpanExporter):
    """The SDK's own way to bytes: its encoder, protobuf, gzip; sends nothing."""

    def __init__(self) -> None:
        self.wire_bytes = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See `SpanExporter.export`."""
        body = gzip.compress(encode_spans(spans).SerializeToString(), SDK_GZIP_LEVEL)
        self.wire_bytes += len(body)
        return SpanExportResult.SUCCESS


def sdk(made: Sequence[Trace]) -> float:
    """Return the CPU seconds in which the SDK makes and encodes the same spans."""
    provider = TracerProvider(resource=Resource.create({"service.name": SERVICE}))
    provider.add_span_processor(BatchSpanProcessor(SdkExporter(), max_queue_size=1 << 20))
    tracer = provider.get_tracer("bench")
    kinds = {Kind.SERVER: otel.SpanKind.SERVER, Kind.INTERNAL: otel.SpanKind.INTERNAL}
    prepared = [[(span, _attributes(one, span)) for span in one.spans] for one in made]
    began_s = CPU()
    for spans in prepared:
        (root, about), *stages = spans
        parent = tracer.start_span(
            root.name, kind=kinds[root.kind], attributes=about, start_time=root.begin_ns
        )
        context = otel.set_span_in_context(parent)
        for span, about in stages:
            child = tracer.start_span(
                span.name,
                context=context,
                kind=kinds[span.kind],
                attributes=about,
                start_time=span.begin_ns,
            )
            child.end(span.end_ns)
        parent.end(root.end_ns)
    provider.force_flush()
    provider.shutdown()
    return CPU() - began_s


def _attributes(trace: Trace, span: Span) -> dict[str, Any]:
    return dict([*span.group.pairs, *span.attributes, *trace.group.pairs, *trace.shared])


# --- sizes


def otlp_json(request: ExportTraceServiceRequest) -> bytes:
    """Return a request as OTLP's JSON: ids as hex, enums as numbers, no spaces."""

    def with_hex(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: with_hex(inner, name) for name, inner in value.items()}
        if isinstance(value, list):
            return [with_hex(inner) for inner in value]
        return base64.b64decode(value).hex() if key in IDS else value

    tree = MessageToDict(request, use_integers_for_enums=True)
    return json.dumps(with_hex(tree), separators=(",", ":"), ensure_ascii=False).encode()


IDS = {"traceId", "spanId", "parentSpanId"}


def sizes(made: Sequence[Trace]) -> dict[str, dict[str, float]]:
    """Return bytes a request, by how many share a batch."""
    found = {}
    for count in BATCHES:
        batch = wire.request({SERVICE: [wire.spans(one) for one in made[:count]]}, version="1")
        plain_json = otlp_json(ExportTraceServiceRequest.FromString(batch))
        sent = otlp_http.gzip(batch)
        found[str(count)] = {
            "json_bytes": round(len(plain_json) / count),
            "protobuf_bytes": round(len(batch) / count),
            "wire_bytes": round(len(sent) / count),
            "json_ratio": round(len(plain_json) / len(sent), 1),
            "protobuf_ratio": round(len(batch) / len(sent), 1),
        }
    return found


# --- the run


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=4_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    made = ledgers(options.requests)
    few = traces(made[: max(200, options.requests // 10)])
    spent_s, peer_s = [], []
    for _ in range(options.rounds):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            spent_s.append(runner.run(ours(made)) / len(made))
        peer_s.append(sdk(few) / len(few))
    figures = {
        "tracer": {"us": round(min(spent_s) * 1e6, 1), "per_s": round(1 / min(spent_s))},
        "sdk": {"us": round(min(peer_s) * 1e6, 1), "per_s": round(1 / min(peer_s))},
        "times_cheaper": round(min(peer_s) / min(spent_s), 1),
        "sizes_by_batch": sizes(few),
        "ledger_bytes": round(len(msgspec.msgpack.encode(made)) / len(made)),
    }
    _table(figures)
    print(json.dumps({"machine": machine(), **figures}, indent=2))


def _table(figures: dict[str, Any]) -> None:
    tell = sys.stderr.write
    tell(f"{'':<28}{'CPU µs a request':>18}{'requests/s a core':>20}\n")
    for name, label in (("tracer", "ledger bytes → gzip OTLP"), ("sdk", "OpenTelemetry SDK")):
        tell(f"{label:<28}{figures[name]['us']:>18}{figures[name]['per_s']:>20}\n")
    tell(
        f"\n{'requests a batch':<18}{'JSON':>8}{'protobuf':>10}{'wire':>7}{'of JSON':>10}{'of pb':>8}\n"
    )
    for count, row in figures["sizes_by_batch"].items():
        tell(
            f"{count:<18}{row['json_bytes']:>8}{row['protobuf_bytes']:>10}{row['wire_bytes']:>7}"
            f"{row['json_ratio']:>8}:1{row['protobuf_ratio']:>6}:1\n"
        )


if __name__ == "__main__":
    main()
