"""The engine's metrics: names, labels and values at a scrape, and the page that serves them."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from services.engine.metrics import PREFIX, Counts, End, Snapshot
from services.engine.step_counts import StepCounts
from services.engine.steps.step import Draft, Prefill, Step
from shared.errors import UserError
from shared.ids import EngineId, ServiceName
from shared.messages import EngineHeartbeat, EngineState, RefuseReason
from shared.metrics_page import serve_page
from tests.support.nats_server import free_port

BEAT = EngineHeartbeat(
    engine=EngineId("e1"),
    service=ServiceName("s"),
    beat=1,
    state=EngineState.READY,
    backend="fake",
    running=3,
    step_age_s=0.5,
)


def page(counts: Counts, steps: StepCounts | None = None) -> str:
    registry = CollectorRegistry()
    registry.register(
        Snapshot(
            counts,
            heartbeat=lambda: BEAT,
            tokens=lambda: 70,
            ring_bytes=lambda: 900,
            steps=steps or StepCounts(),
            mode_changes=lambda: 2,
        )
    )
    return generate_latest(registry).decode()


def test_counts_and_gauges_have_their_values():
    counts = Counts()
    counts.accepted = 4
    counts.refused[RefuseReason.TOO_LONG] += 2
    counts.ends[End.CANCELLED] += 1

    lines = page(counts).splitlines()

    for line in (
        "llm_engine_tokens_total 70.0",
        "llm_engine_accepted_total 4.0",
        'llm_engine_refused_total{reason="too_long"} 2.0',
        'llm_engine_streams_ended_total{end="cancelled"} 1.0',
        "llm_engine_running 3.0",
        "llm_engine_step_age_seconds 0.5",
        "llm_engine_ring_bytes 900.0",
        'llm_engine_state{state="ready"} 1.0',
    ):
        assert line in lines


def test_steps_are_counted():
    steps = StepCounts()
    for step in (
        Step(1, 1.0, 1.5, prefills=[Prefill("a", 100, 20, cached=16)], mode="FAKE/eager"),
        Step(2, 1.4, 1.51, decodes=3, preempted=["a"], mode="FAKE/graph"),
        Step(3, 1.51, 1.52, decodes=3, drafts=[Draft("b", 4, 2)], mode="FAKE/graph"),
    ):
        steps.step(step)

    lines = page(Counts(), steps).splitlines()

    for line in (
        "llm_engine_prefill_tokens_total 100.0",
        "llm_engine_recomputed_tokens_total 20.0",
        "llm_engine_cached_tokens_total 16.0",
        "llm_engine_preemptions_total 1.0",
        "llm_engine_drafted_tokens_total 4.0",
        "llm_engine_accepted_tokens_total 2.0",
        "llm_engine_mode_changes_total 2.0",
        'llm_engine_step_mode{mode="FAKE/graph"} 1.0',
        'llm_engine_step_duration_seconds_bucket{le="0.0128"} 2.0',
        'llm_engine_step_duration_seconds_bucket{le="0.8192"} 3.0',
        'llm_engine_step_duration_seconds_bucket{le="+Inf"} 3.0',
        "llm_engine_step_duration_seconds_count 3.0",
    ):
        assert line in lines, line


def test_every_name_has_the_prefix_and_a_text():
    helps = [line for line in page(Counts()).splitlines() if line.startswith("# HELP")]

    assert helps
    assert all(line.split()[2].startswith(PREFIX) and len(line.split()) > 4 for line in helps)


async def ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /metrics HTTP/1.1", b"200 OK"),
        (b"GET /metrics?x=1 HTTP/1.0", b"200 OK"),
        (b"GET /secrets HTTP/1.1", b"404 Not Found"),
        (b"POST /metrics HTTP/1.1", b"404 Not Found"),
    ],
)
def test_the_page_answers_its_one_question(request_line, status):
    async def scenario():
        port = free_port()
        async with serve_page(port, lambda: b"figures\n"):
            answer = await ask(port, request_line + b"\r\nHost: x\r\n\r\n")

        assert answer.startswith(b"HTTP/1.1 " + status)
        assert (b"figures" in answer) == (status == b"200 OK")

    asyncio.run(scenario())


def test_nonsense_only_costs_its_connection():
    async def scenario():
        port = free_port()
        async with serve_page(port, lambda: b"figures\n"):
            with suppress(ConnectionError):  # a reset where it closes on unread bytes
                assert await ask(port, b"x" * 100_000) == b""
            assert b"figures" in await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n")

    asyncio.run(scenario())


def test_a_taken_port_says_what_to_change():
    async def scenario():
        port = free_port()
        async with serve_page(port, bytes):
            with pytest.raises(UserError) as caught:
                async with serve_page(port, bytes):
                    pass

        assert "metrics_port" in caught.value.hint

    asyncio.run(scenario())


def test_no_port_no_page():
    async def scenario():
        async with serve_page(0, bytes):
            pass

    asyncio.run(scenario())
