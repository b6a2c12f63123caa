"""`headrace up --otlp`: a request of a client that traces is one tree at the collector, below the client's span, and adds up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from shared.messages import STAGES
from tests.support.buses import until
from tests.support.otlp import http_collector, values_of
from tests.support.platform import Platform

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
BODY = {
    "model": "fake",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 20,
    "ignore_eos": True,
}


def test_a_request_of_a_client_that_traces_is_one_tree_below_its_span(tmp_path: Path):
    async def scenario() -> None:
        async with http_collector() as collector:
            platform = Platform(tmp_path / "home", "--fake-engine", "--otlp", collector.url)
            try:
                await asyncio.to_thread(platform.start, timeout_s=90.0)
                async with httpx.AsyncClient(timeout=20) as client:
                    answer = await client.post(
                        f"{platform.url}/v1/chat/completions",
                        json=BODY,
                        headers={"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"},
                    )
                await until(
                    lambda: any(span.trace_id.hex() == TRACE_ID for span in collector.spans),
                    timeout_s=15,
                )
            finally:
                await asyncio.to_thread(platform.stop)

            root, *stages = (s for s in collector.spans if s.trace_id.hex() == TRACE_ID)
            told = values_of(root.attributes)
            assert Span.SPAN_KIND_SERVER == root.kind
            assert PARENT_ID == root.parent_span_id.hex()
            assert root.span_id.hex() == answer.headers["traceparent"].split("-")[2]
            assert (answer.json()["id"], 20) == (
                told["gen_ai.response.id"],
                told["gen_ai.usage.output_tokens"],
            )
            assert {stage.value for stage in STAGES} == {span.name for span in stages}
            assert {root.span_id} == {span.parent_span_id for span in stages}
            length = {s.name: s.end_time_unix_nano - s.start_time_unix_nano for s in stages}
            assert root.end_time_unix_nano - root.start_time_unix_nano == sum(length.values())
            # 20 tokens at 10 ms a step of the fake engine.
            assert 0.15e9 < length["decode"] < 1.5e9

    asyncio.run(scenario())
