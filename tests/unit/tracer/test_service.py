"""The tracer's shell in virtual time: from messages on the bus to batches at a collector that answers, is slow, or is away for an hour."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client import CollectorRegistry, generate_latest

from services.tracer.holding import HOLD_S
from services.tracer.outbox import OutboxSettings
from services.tracer.ports import Answer, Later, Never, Taken
from services.tracer.restraint import WINDOW_S
from services.tracer.service import TracerService
from services.tracer.settings import TracerSettings
from shared.bus import Bus
from shared.ids import EngineId, RequestId, ServiceName, TracerId
from shared.messages import (
    Attempt,
    BlackBox,
    Message,
    Orphan,
    Outcome,
    StageBatch,
    StepSummary,
    TracerHeartbeat,
)
from shared.observability import Observability, Policies
from shared.runtime import Runtime
from tests.support.buses import MemoryWorld
from tests.support.otlp import spans_of, values_of
from tests.support.traced_ledgers import ENGINE, SERVICE, batch, ledger, numbered
from tests.unit.tracer.test_holding import SPENT

SLOW_US = 3_000_000
ALL = Observability(sampling_rate=1.0)


class PlannedCollector:
    """An `Exporter` that answers as planned, at once or after `delay_s`."""

    def __init__(self) -> None:
        self.answer: Answer = Taken(wire_bytes=10)
        self.delay_s = 0.0
        self.requests: list[ExportTraceServiceRequest] = []
        self.deadlines: list[float] = []

    async def export(self, request: bytes, *, timeout_s: float) -> Answer:
        """See `Exporter.export`."""
        self.deadlines.append(timeout_s)
        if isinstance(self.answer, Taken):
            self.requests.append(ExportTraceServiceRequest.FromString(request))
        await asyncio.sleep(self.delay_s)
        return self.answer

    async def close(self) -> None:
        """See `Exporter.close`."""

    @property
    def spans(self) -> list[Any]:
        return [span for request in self.requests for span in spans_of(request)]

    @property
    def roots(self) -> list[dict[str, Any]]:
        """Attributes of all roots."""
        return [values_of(span.attributes) for span in self.spans if span.kind == 2]


class Rig:
    """One tracer on a memory bus, and who speaks to it."""

    def __init__(self, collector: PlannedCollector | None, **settings: Any) -> None:
        self.collector = collector
        self.settings = TracerSettings(**settings)
        self.policies = Policies()
        self.cpu_s = 0.0
        self.beats: list[TracerHeartbeat] = []
        self.runtime: Runtime
        self.service: TracerService
        self.bus: Bus

    def publish(self, *messages: Message) -> None:
        for message in messages:
            self.bus.publish(message)

    def page(self) -> str:
        registry = CollectorRegistry()
        registry.register(self.service.collector)
        return generate_latest(registry).decode()

    def run(self, scenario: Callable[[Rig], Awaitable[None]]) -> None:
        async def main(world: Any) -> None:
            self.bus = await world.bus("gateway")
            await self.bus.subscribe(TracerHeartbeat, self.beats.append)
            try:
                async with asyncio.TaskGroup() as group:
                    self.runtime = Runtime(group)
                    self.service = TracerService(
                        self.settings,
                        await world.bus("tracer"),
                        self.collector,
                        policies=self.policies,
                        tracer=TracerId("t1"),
                        cpu_clock=lambda: self.cpu_s,
                    )
                    running = group.create_task(self.service.run(self.runtime))
                    await asyncio.sleep(0.01)
                    await scenario(self)
                    self.runtime.stop.set()
                    await running
                    _end()
            except* _OverError:
                pass

        MemoryWorld().run(main)


class _OverError(Exception):
    """The scenario ended; the tracer's tasks are cancelled with the group."""


def _end() -> NoReturn:
    raise _OverError


def test_a_slow_request_becomes_a_trace_at_the_collector():
    rig = Rig(PlannedCollector())
    rig.policies = Policies(default=Observability(export_timeout_s=3.0))

    async def scenario(rig: Rig) -> None:
        rig.publish(batch(ledger(wall_us=SLOW_US), ledger(wall_us=90_000)))
        await asyncio.sleep(2.0)

    rig.run(scenario)

    assert rig.collector is not None
    assert 13 == len(rig.collector.spans)
    assert ["slow"] == [root["llm.kept_because"] for root in rig.collector.roots]
    assert [3.0] == rig.collector.deadlines
    page = rig.page()
    for line in (
        "headrace_tracer_ledgers_total 2.0",
        'headrace_tracer_traces_kept_total{reason="slow"} 1.0',
        'headrace_tracer_traces_sampled_out_total{reason="fast"} 1.0',
        "headrace_tracer_traces_exported_total 1.0",
        "headrace_tracer_wire_bytes_total 10.0",
        'headrace_tracer_export_seconds_bucket{le="+Inf"} 1.0',
        "headrace_tracer_queue_traces 0.0",
    ):
        assert line in page


def test_without_a_collector_ledgers_are_counted_and_no_trace_is_made():
    rig = Rig(None)

    async def scenario(rig: Rig) -> None:
        rig.publish(batch(ledger(outcome=Outcome.FAILED)))
        await asyncio.sleep(1.0)

    rig.run(scenario)

    assert (1, 0) == (rig.service.counts.ledgers, len(rig.service.outbox))


def test_it_beats_twice_a_second_and_tells_how_it_is():
    rig = Rig(PlannedCollector(), metrics_port=9103)

    async def scenario(rig: Rig) -> None:
        rig.publish(batch(ledger(outcome=Outcome.FAILED)))
        await asyncio.sleep(5.0)

    rig.run(scenario)

    assert 10 <= len(rig.beats) <= 11
    last = rig.beats[-1]
    assert ("t1", 1, 1, 1, 0) == (last.tracer, last.ledgers, last.kept, last.exported, last.level)
    assert "http://127.0.0.1:9103/metrics" == last.url


def test_a_collector_that_is_away_for_an_hour_costs_the_oldest_traces_and_no_memory():
    bounds = OutboxSettings(max_bytes=200_000, batch_bytes=50_000)
    rig = Rig(PlannedCollector(), outbox=bounds)
    most = 0

    async def scenario(rig: Rig) -> None:
        nonlocal most
        assert rig.collector is not None
        rig.collector.answer = Later("refused")
        for n in range(720):
            rig.publish(batch(numbered(n, wall_us=SLOW_US, outcome=Outcome.FAILED)))
            await asyncio.sleep(5.0)
            most = max(most, rig.service.outbox.held_bytes)
        rig.collector.answer = Taken()
        await asyncio.sleep(60.0)

    rig.run(scenario)

    assert rig.collector is not None
    assert most <= bounds.max_bytes
    sent, counts = rig.service.outbox.counts, rig.service.counts
    assert 720 == sum(counts.kept.values()) == sent.exported + sent.dropped
    assert 20 < sent.exported < 100
    # Tried each half minute, not each second.
    assert 100 < sent.retries < 250
    got = [root["llm.request_id"] for root in rig.collector.roots]
    assert [f"chatcmpl-{n}" for n in range(720 - len(got), 720)] == got
    assert rig.beats[-1].dropped == sent.dropped


def test_a_collector_that_hangs_holds_up_one_batch_only_until_its_deadline():
    rig = Rig(PlannedCollector(), outbox=OutboxSettings(batch_bytes=1))

    async def scenario(rig: Rig) -> None:
        assert rig.collector is not None
        rig.collector.delay_s = 4.0
        for n in range(3):
            rig.publish(batch(numbered(n, outcome=Outcome.FAILED)))
        await asyncio.sleep(3.0)
        assert (1, 3) == (len(rig.collector.requests), len(rig.service.outbox))
        await asyncio.sleep(12.0)

    rig.run(scenario)

    assert 3 == rig.service.outbox.counts.exported
    assert 25 < len(rig.beats)


def test_what_a_collector_refuses_is_counted():
    rig = Rig(PlannedCollector())

    async def scenario(rig: Rig) -> None:
        assert rig.collector is not None
        rig.collector.answer = Never("HTTP 400")
        rig.publish(batch(ledger(outcome=Outcome.FAILED)))
        await asyncio.sleep(2.0)
        rig.collector.answer = Taken(rejected_spans=4, message="too old")
        rig.publish(batch(ledger(outcome=Outcome.FAILED)))
        await asyncio.sleep(2.0)

    rig.run(scenario)

    assert (1, 1) == (rig.service.outbox.counts.rejected, rig.service.outbox.counts.exported)
    assert 4 == rig.service.counts.rejected_spans
    assert 1 == rig.beats[-1].dropped


def test_an_orphan_becomes_a_failed_trace_when_no_ledger_comes():
    rig = Rig(PlannedCollector())
    news = StageBatch(
        service=SERVICE,
        engine=ENGINE,
        at=102.0,
        unix_s=5_000.0,
        moves=[],
        steps=StepSummary(),
        orphans=[Orphan(request=RequestId(name), trace={}, spent=SPENT) for name in ("a", "b")],
    )

    async def scenario(rig: Rig) -> None:
        rig.publish(news)
        await asyncio.sleep(1.0)
        rig.publish(batch(ledger(request=RequestId("b"), outcome=Outcome.LEFT, wall_us=90_000)))
        await asyncio.sleep(HOLD_S + 2.0)

    rig.run(scenario)

    assert rig.collector is not None
    (root,) = rig.collector.roots
    assert ("a", "gateway_lost") == (root["llm.request_id"], root["error.type"])
    assert 2 == rig.service.counts.orphans
    outcomes = [
        (sample.labels["outcome"], sample.value)
        for metric in rig.service.requests.collect()
        for sample in metric.samples
        if sample.name == "headrace_requests_total" and sample.value
    ]
    assert [("failed", 1.0), ("left", 1.0)] == sorted(outcomes)


def test_a_lost_request_is_told_with_the_black_box_that_came_a_little_later():
    rig = Rig(PlannedCollector())
    lost = EngineId("e-dead")
    attempts = [Attempt(engine=lost, why="is gone", us=9)]
    box = BlackBox(engine=lost, service=SERVICE, path="p.json", host="h", cause="signal 9")

    async def scenario(rig: Rig) -> None:
        rig.publish(batch(ledger(attempts=attempts)))
        await asyncio.sleep(1.0)
        rig.publish(box)
        await asyncio.sleep(2.0)

    rig.run(scenario)

    assert rig.collector is not None
    (event,) = [event for span in rig.collector.spans for event in span.events]
    assert "h:p.json" == values_of(event.attributes)["llm.black_box"]


def test_what_is_held_and_what_waits_leaves_before_the_end():
    rig = Rig(PlannedCollector(), outbox=OutboxSettings(batch_age_s=0.5))
    attempts = [Attempt(engine=EngineId("e-dead"), why="is gone", us=9)]

    async def scenario(rig: Rig) -> None:
        rig.publish(batch(ledger(attempts=attempts), ledger(outcome=Outcome.FAILED)))
        await asyncio.sleep(0.1)

    rig.run(scenario)

    assert 2 == rig.service.outbox.counts.exported


def test_a_ledger_that_is_none_does_no_harm_to_other_messages():
    rig = Rig(PlannedCollector())

    async def scenario(rig: Rig) -> None:
        rig.publish(batch(ledger(us=[1, 2]), ledger(outcome=Outcome.FAILED)))
        rig.publish(batch(ledger(outcome=Outcome.FAILED)))
        await asyncio.sleep(2.0)

    rig.run(scenario)

    assert (1, 1) == (rig.service.counts.ledgers, rig.service.outbox.counts.exported)


def test_an_exporter_that_breaks_costs_a_delay_and_not_the_tracer():
    class Broken(PlannedCollector):
        async def export(self, request: bytes, *, timeout_s: float) -> Answer:
            taken = await super().export(request, timeout_s=timeout_s)
            assert len(self.deadlines) > 1, "the first answer cannot be read"
            return taken

    rig = Rig(Broken())

    async def scenario(rig: Rig) -> None:
        rig.publish(batch(ledger(outcome=Outcome.FAILED)))
        await asyncio.sleep(10.0)

    rig.run(scenario)

    assert 1 == rig.service.outbox.counts.retries == rig.service.outbox.counts.exported


def test_each_service_is_traced_as_it_wants():
    rig = Rig(PlannedCollector())
    secret, open_one = ServiceName("secret"), ServiceName("open")
    rig.policies = Policies(
        default=ALL,
        services={
            secret: Observability(sampling_rate=1.0, sensitive=("llm.request_id",), max_spans=5)
        },
    )

    async def scenario(rig: Rig) -> None:
        rig.publish(batch(numbered(1), service=secret), batch(numbered(2), service=open_one))
        await asyncio.sleep(2.0)

    rig.run(scenario)

    assert rig.collector is not None
    (request,) = rig.collector.requests
    assert b"chatcmpl-1" not in request.SerializeToString()
    assert b"chatcmpl-2" in request.SerializeToString()
    assert [5, 13] == [len(group.scope_spans[0].spans) for group in request.resource_spans]


def test_its_own_cost_makes_it_keep_failures_only_and_it_comes_back():
    rig = Rig(PlannedCollector())
    rig.policies = Policies(default=ALL)
    kept = []

    async def scenario(rig: Rig) -> None:
        rig.cpu_s += 0.2 * WINDOW_S
        await asyncio.sleep(WINDOW_S + 1.0)
        assert 2 == rig.beats[-1].level
        rig.publish(batch(numbered(1), numbered(2, outcome=Outcome.FAILED)))
        await asyncio.sleep(2.0)
        kept.append(sum(rig.service.counts.kept.values()))
        await asyncio.sleep(15 * WINDOW_S)
        rig.publish(batch(numbered(3)))
        await asyncio.sleep(2.0)

    rig.run(scenario)

    assert [1] == kept
    assert 2 == sum(rig.service.counts.kept.values())
    assert 0 == rig.beats[-1].level


def test_lost_messages_are_told():
    rig = Rig(PlannedCollector())

    async def scenario(rig: Rig) -> None:
        rig.service._bus.report_loss("slow")  # type: ignore[attr-defined] # as the wire does
        await asyncio.sleep(1.0)

    rig.run(scenario)

    assert 1 == rig.beats[-1].missed
