"""CPU cost of accounting for a request in the gateway, beside what OpenTelemetry's SDK takes for the same.

Ours: trace context, stamps, the engine's word, the entry, its batch as bytes.
Theirs: a root span and twelve stages with twelve attributes each, a batch processor, an exporter that throws them away.
One process, no I/O, the two in turns; each figure is the fastest of many rounds, since other work on the machine only ever adds time.
Prints a table and then JSON.

    python bench/ledger_gateway.py [--json]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import timeit
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from msgspec.structs import force_setattr  # noqa: E402 - needs the path above
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import (  # noqa: E402
    BatchSpanProcessor,
    SpanExporter,
    SpanExportResult,
)

from bench.support.processes import machine  # noqa: E402
from services.gateway.admission.verdict import Ticket  # noqa: E402
from services.gateway.call import Call  # noqa: E402
from services.gateway.http_outlets import SseOutlet  # noqa: E402
from services.gateway.ledger.book import LedgerBook  # noqa: E402
from services.gateway.ledger.stamps import Stay, Stays  # noqa: E402
from services.gateway.ledger.trace import ID_BITS, continue_trace  # noqa: E402
from services.gateway.outlet import Caller  # noqa: E402
from services.gateway.running import Part, RunningCall  # noqa: E402
from shared.codec import encode  # noqa: E402
from shared.ids import EngineId, GatewayId, RequestId, ServiceName, StreamNo, TenantId  # noqa: E402
from shared.messages import (  # noqa: E402
    STAGES,
    Delta,
    EngineHeartbeat,
    EngineState,
    Finish,
    Outcome,
    Priority,
    Sampling,
    Spent,
    TextPrompt,
    Usage,
)

CPU = time.process_time
ROUNDS = 40
REQUESTS = 512
"""In one round."""
ANSWER_S = 0.1
"""How much later than now the last delta comes."""
GATEWAY = GatewayId("g0123456789abcdef")
ENGINE = EngineId("e0123456789abcdef")
SERVICE = ServiceName("smollm2-135m")
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Silent(SseOutlet):
    """An outlet nobody reads."""

    def __init__(self) -> None: ...


class Ours:
    """The ledger's part of a request's way through the gateway, and nothing else of it."""

    def __init__(self) -> None:
        self.stamp = time.monotonic
        self.book = LedgerBook({SERVICE}, stamp=self.stamp, wall_time_s=time.time)  # noqa: TID251
        self.random = random.Random(1)
        self.call = Call(
            kind="completion",
            model=SERVICE,
            prompts=(TextPrompt(text="hello"),),
            sampling=Sampling(max_tokens=64),
            stream=True,
        )
        self.beat = EngineHeartbeat(
            engine=ENGINE,
            service=SERVICE,
            beat=1,
            state=EngineState.READY,
            backend="vllm",
            boot="b",
        )
        now = self.stamp()
        self.spent = Spent(
            received_at=now,
            until=now,
            us=[200, 1500, 0, 9000, 64_000, 300, 0, 120],
            prefill_tokens=120,
            decode_tokens=64,
            first_step=1000,
            last_step=1064,
            batch_size=7.5,
            kv_blocks=12,
            mode="FLASH_ATTN/graph",
        )
        self.running = self.new_call()
        self.parts = self.running.parts

    def new_call(self) -> RunningCall:
        """Return a call whose answer is whole."""
        caller = self.caller(None)
        outlet = Silent()
        running = RunningCall(
            self.call, caller, outlet, ticket=Ticket(1), priority=Priority.DEFAULT, deadline=0.0
        )
        part = Part(running, self.call.prompts[0], first_choice=0, notice=lambda *_: None)
        part.said[0].add(Delta(StreamNo(1), 0, 0, "", list(range(64)), Finish.LENGTH))
        part.usage = Usage(prompt_tokens=120, completion_tokens=64)
        running.parts = [part]
        return running

    def caller(self, parent: str | None) -> Caller:
        """Return who asks; the id and the label were there before there was a ledger."""
        trace = continue_trace(parent, None, random_bits=self.random.getrandbits(ID_BITS))
        return Caller(
            request=RequestId("cmpl-0123456789abcdef01234567"),
            door="http",
            kind="completion",
            received_at=self.stamp(),
            trace=trace,
            tenant=TenantId("anonymous"),
        )

    def trace(self) -> None:
        """Make a new trace context and what is told of it."""
        for _ in range(REQUESTS):
            context = continue_trace(None, None, random_bits=self.random.getrandbits(ID_BITS))
            context.fields()

    def given_trace(self) -> None:
        """Go on with the caller's."""
        for _ in range(REQUESTS):
            context = continue_trace(PARENT, None, random_bits=self.random.getrandbits(ID_BITS))
            context.fields()

    def stamps_and_entry(self) -> None:
        """Stamp requests from their first byte to their last, and make their entries."""
        running, stamp, book = self.running, self.stamp, self.book
        (part,) = self.parts
        spent = self.spent
        for _ in range(REQUESTS):
            running.caller.received_at = stamp()
            running.offered_at = stamp()
            running.admitted_at = stamp()
            stays = part.stays = Stays()
            stays.present = Stay(ENGINE, self.beat, stamp(), "", True, -1)
            force_setattr(spent, "received_at", stamp())  # decoding makes a new one, elsewhere
            stays.taken(120)
            running.first_at = stays.last_at = stamp()
            stays.answered(stays.last_at)
            stays.tell(spent, stays.last_at)
            stays.last_at = stamp() + ANSWER_S
            stays.tell(spent, stays.last_at)
            stays.leave()
            running.parts = self.parts
            book.ended(running, Outcome.FINISHED, None).close()

    def batches(self) -> None:
        """Make bytes of what has ended."""
        for batch in self.book.batches(GATEWAY):
            encode(batch)

    def whole(self) -> None:
        """All of it."""
        self.trace()
        self.stamps_and_entry()
        self.batches()

    def stamps_only(self) -> None:
        """The same without the batch, which would otherwise grow."""
        self.stamps_and_entry()
        self.book._waiting.clear()  # noqa: SLF001 - what is measured is before it


class Nowhere(SpanExporter):
    """Throws spans away."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See `SpanExporter`."""
        del spans
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """See `SpanExporter`."""


class Theirs:
    """The same request as spans of OpenTelemetry's SDK."""

    def __init__(self) -> None:
        self.provider = TracerProvider()
        self.provider.add_span_processor(BatchSpanProcessor(Nowhere(), max_queue_size=65_536))
        self.tracer = self.provider.get_tracer("bench")
        self.attributes: dict[str, str | int | float] = {
            "llm.stage": "decode",
            "llm.request_id": "cmpl-0123456789abcdef01234567",
            "llm.service": SERVICE,
            "llm.version": "1",
            "llm.engine_id": ENGINE,
            "llm.priority": "default",
            "llm.prefill_tokens": 120,
            "llm.cached_tokens": 0,
            "llm.kv_cache_hit_rate": 0.0,
            "llm.decode_tokens": 64,
            "llm.batch_size": 7.5,
            "llm.kv_blocks": 12,
        }

    def whole(self) -> None:
        """A root and twelve stages for each request."""
        tracer, attributes = self.tracer, self.attributes
        for _ in range(REQUESTS // 8):
            with tracer.start_as_current_span("request", attributes=attributes):
                for stage in STAGES:
                    tracer.start_span(stage, attributes=attributes).end()


class Tokens:
    """A part that takes text."""

    def __init__(self) -> None:
        running = Ours().new_call()
        self.part = running.parts[0]
        self.part._emit = lambda *_: None  # noqa: SLF001 - the outlet is not measured
        self.part._is_fast = True  # noqa: SLF001
        self.delta = Delta(StreamNo(1), 1, 0, "word", [1])

    def take(self) -> None:
        """Take one token after the other."""
        take, delta = self.part.take, self.delta
        for _ in range(REQUESTS):
            take(delta, 1.0)

    def rhythm(self) -> None:
        """Only what the longest gap costs."""
        part = self.part
        for _ in range(REQUESTS):
            stays = part.stays
            if 1.0 - stays.last_at > stays.max_gap_s:  # noqa: PLR1730 - as in `Part.take`
                stays.max_gap_s = 1.0 - stays.last_at
            stays.last_at = 1.0


def fastest_us(cases: dict[str, tuple[Callable[[], None], int]]) -> dict[str, float]:
    """Return the microseconds of CPU by case, each for one of the number of things that its call does; the cases take turns."""
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(ROUNDS):
        for name, (case, number) in cases.items():
            took_s = timeit.timeit(case, timer=CPU, number=1)
            best[name] = min(best[name], took_s / number * 1e6)
    return best


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="no table")
    options = parser.parse_args()
    ours, theirs, tokens = Ours(), Theirs(), Tokens()
    found = fastest_us(
        {
            "ours: stamps and entry": (ours.stamps_only, REQUESTS),
            "ours: trace context, new": (ours.trace, REQUESTS),
            "ours: trace context, given": (ours.given_trace, REQUESTS),
            "ours: all, with the batch as bytes": (ours.whole, REQUESTS),
            "theirs: 13 spans": (theirs.whole, REQUESTS // 8),
            "a token: Part.take": (tokens.take, REQUESTS),
            "a token: the longest gap": (tokens.rhythm, REQUESTS),
        }
    )
    theirs.provider.shutdown()
    figures = {name: round(us, 3) for name, us in found.items()}
    if not options.json:
        for name, us in figures.items():
            print(f"{name:<38}{us:>10.2f} µs")
    print(json.dumps({"machine": machine("msgspec", "opentelemetry-sdk"), "us": figures}, indent=2))


if __name__ == "__main__":
    main()
