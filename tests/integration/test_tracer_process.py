"""Tracer processes on a real NATS server, with collectors that speak OTLP by the book: the right tree, once, and what services want."""

from __future__ import annotations

import asyncio
import signal
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import pytest
import uvloop
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from shared.ids import ServiceName
from shared.messages import STAGES, Outcome, TracerHeartbeat
from shared.natsbus import NatsBus
from shared.settings import NatsSettings
from tests.support.buses import until
from tests.support.gateway_process import Child
from tests.support.nats_server import NatsServer, free_port
from tests.support.otlp import Collector, grpc_collector, http_collector, values_of
from tests.support.traced_ledgers import BEGAN_UNIX_US, US, batch, numbered

pytestmark = pytest.mark.timeout(60)

POLICIES = "default: {sampling_rate: 100%, sensitiveAttrs: [llm.tenant]}\n"


class Tracers:
    """Tracer processes of one test."""

    def __init__(self, server: NatsServer, folder: Path) -> None:
        self.server = server
        self.service = ServiceName(f"s{uuid4().hex[:12]}")
        self.children: list[Child] = []
        self.ports: list[int] = []
        self._folder = folder

    async def start(self, count: int, url: str) -> None:
        """Start tracers and return when they listen."""
        policies = self._folder / "policies.yaml"
        policies.write_text(POLICIES)
        for number in range(count):
            self.ports.append(free_port())
            options = ("--nats-url", self.server.url, "--metrics-port", str(self.ports[-1]))
            export = ("--otlp-url", url, "--policies", str(policies), "--outbox-batch-age-s", "0.2")
            log = self._folder / f"tracer-{number}.log"
            self.children.append(Child("services.tracer", log, *options, *export))
        for child in self.children:
            await child.says("tracer_ready")

    async def total(self, name: str) -> float:
        """Return a counter, summed over the tracers as a query would."""
        pages = [await asyncio.to_thread(self._page, port) for port in self.ports]
        return sum(
            float(line.split()[-1])
            for page in pages
            for line in page.splitlines()
            if line.startswith(f"headrace_tracer_{name}")
        )

    @staticmethod
    def _page(port: int) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
            text: str = response.read().decode()
            return text


@pytest.fixture
def tracers(nats_server: NatsServer, tmp_path: Path) -> Iterator[Tracers]:
    made = Tracers(nats_server, tmp_path)
    yield made
    for child in made.children:
        child.kill()


def run(tracers: Tracers, scenario: Callable[[NatsBus], Awaitable[None]]) -> None:
    async def main() -> None:
        settings = NatsSettings(url=tracers.server.url)
        async with asyncio.timeout(50), asyncio.TaskGroup() as group:
            bus = await NatsBus.connect(settings, group=group, name="test gateway")
            try:
                await scenario(bus)
            finally:
                await bus.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def roots(collector: Collector) -> list[Span]:
    return [span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER]


def check_tree(collector: Collector, root: Span) -> None:
    """Check the tree of one request: who is whose child, and that the times add up."""
    spans = [span for span in collector.spans if span.trace_id == root.trace_id]
    stages = sorted(
        (span for span in spans if span.kind == Span.SPAN_KIND_INTERNAL),
        key=lambda span: span.start_time_unix_nano,
    )
    (draft,) = (span for span in spans if span.kind == Span.SPAN_KIND_PRODUCER)
    by_name = {span.name: span for span in stages}
    assert 14 == len(spans) == len({span.span_id for span in spans})
    assert {stage.value for stage in STAGES} == by_name.keys()
    assert {root.span_id} == {span.parent_span_id for span in stages}
    assert by_name["decode"].span_id == draft.parent_span_id
    assert b"caller--" == root.parent_span_id
    whole_ns = root.end_time_unix_nano - root.start_time_unix_nano
    assert sum(US) * 1000 == whole_ns
    assert whole_ns == sum(s.end_time_unix_nano - s.start_time_unix_nano for s in stages)
    assert BEGAN_UNIX_US * 1000 == root.start_time_unix_nano == stages[0].start_time_unix_nano
    assert all(a.end_time_unix_nano == b.start_time_unix_nano for a, b in pairwise(stages))


def test_each_request_is_one_tree_at_an_http_collector_whoever_of_two_tracers_had_it(tracers):
    async def scenario(bus: NatsBus) -> None:
        beats: dict[str, TracerHeartbeat] = {}
        await bus.subscribe(TracerHeartbeat, lambda beat: beats.update({beat.tracer: beat}))
        async with http_collector() as collector:
            collector.answers = [(503, {"Retry-After": "0"}, b"")]
            await tracers.start(2, collector.url)
            for n in range(40):
                one = numbered(
                    n,
                    parent_id=b"caller--",
                    trace_flags=1,
                    tenant="team-a",
                    drafted_tokens=9,
                    accepted_tokens=4,
                )
                bus.publish(batch(one, service=tracers.service))
            await until(lambda: len(roots(collector)) >= 40, timeout_s=20)
            await until(lambda: sum(beat.exported for beat in beats.values()) == 40)

            assert 40 == len({root.trace_id for root in roots(collector)})
            for root in roots(collector)[:3]:
                check_tree(collector, root)
            told = values_of(roots(collector)[0].attributes)
            assert ("caller", f"chat {tracers.service}") == (
                told["llm.kept_because"],
                roots(collector)[0].name,
            )
            assert "team-a" not in str(collector.requests)
            assert "gzip" == collector.headers[0]["Content-Encoding"]
            assert 2 == len(beats)
            assert 40 == await tracers.total("ledgers_total")
            assert 40 == await tracers.total("traces_exported_total")
            assert 1 == await tracers.total("export_retries_total")

    run(tracers, scenario)


def test_traces_leave_over_grpc_and_what_waits_leaves_before_the_end(tracers):
    async def scenario(bus: NatsBus) -> None:
        async with grpc_collector() as collector:
            await tracers.start(1, collector.url)
            failed = numbered(1, outcome=Outcome.FAILED, status=502, code="engine_lost")
            bus.publish(batch(failed, service=tracers.service))
            await until(lambda: roots(collector))
            bus.publish(batch(numbered(2), service=tracers.service))
            await bus.flush(timeout_s=5.0)
            await asyncio.sleep(0.05)
            tracers.children[0].signal(signal.SIGTERM)
            assert 0 == await tracers.children[0].exit_code(), tracers.children[0].log

            assert 26 == len(collector.spans)
            assert (2, "engine_lost") == (
                roots(collector)[0].status.code,
                roots(collector)[0].status.message,
            )

    run(tracers, scenario)
