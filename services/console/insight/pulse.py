"""What a platform does now: requests, steps and beats of the last ten seconds, in bounded memory. Pure; time is data.

Rates are exact. Latencies are of the latest 20,000 requests of these seconds; those before go first.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec
from typing_extensions import override

from services.console.insight.found import Found
from services.console.plain import cleaned
from shared.ids import EngineId, RequestId, ServiceName
from shared.messages import (
    ENGINE_GONE_S,
    STAGES,
    EngineHeartbeat,
    GatewayHeartbeat,
    Outcome,
    StageBatch,
    StepSummary,
    TracerHeartbeat,
)

SPAN_S = 10.0
MIN_SPAN_S = 0.1
FORGET_S = 60.0
"""How long one that fell silent is still shown."""
MAX_REQUESTS = 20_000
MAX_STEP_BATCHES = 256
"""Of one engine: it sends ten a second."""
MAX_COUNTS = 20_000
"""Of requests by second, service and outcome; those of further services are not counted."""
MAX_SENDERS = 1_000
"""Of each kind; further ones are not heard."""

B = TypeVar("B", EngineHeartbeat, GatewayHeartbeat, TracerHeartbeat)


class Beating(msgspec.Struct, Generic[B], frozen=True):
    """The latest beat of a process."""

    beat: B
    silent_s: float

    @property
    def is_silent(self) -> bool:
        """Whether it has been silent for so long that it counts as dead."""
        return self.silent_s >= ENGINE_GONE_S


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of one engine in these seconds."""

    steps_per_s: float = 0.0
    tokens_per_s: float = 0.0
    prefill_per_s: float = 0.0
    """Prompt tokens computed."""
    batch: float = 0.0
    """Tokens generated in a step, on average."""
    wait_share: float = 0.0
    """Of the time of all steps, what others' prefills added while somebody was decoding."""
    longest_us: int = 0
    longest_by: RequestId = RequestId("")
    preemptions: int = 0
    mode: str = ""


class ServiceNow(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one service that ended in these seconds; latencies are sorted and in microseconds."""

    service: ServiceName
    per_s: float
    outcomes: Mapping[Outcome, int]
    first_us: list[int]
    token_us: list[float]
    wall_us: list[int]
    us: list[int]
    """Time of the finished ones by stage, added up."""


class Now(msgspec.Struct, frozen=True, kw_only=True):
    """One picture."""

    span_s: float
    services: list[ServiceNow]
    engines: list[tuple[Beating[EngineHeartbeat], Steps]]
    gateways: list[Beating[GatewayHeartbeat]]
    tracers: list[Beating[TracerHeartbeat]]


def _span_s(since: float, now: float) -> float:
    return min(SPAN_S, max(MIN_SPAN_S, now - since))


class _Roll(Generic[B]):
    """The latest beats of a kind, and when each was heard."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[B, float]] = {}

    def hear(self, key: str, beat: B, now: float) -> None:
        if key in self._heard or len(self._heard) < MAX_SENDERS:
            self._heard[key] = (cleaned(beat), now)

    def beating(self, now: float) -> list[Beating[B]]:
        self._heard = {k: one for k, one in self._heard.items() if now - one[1] < FORGET_S}
        return [Beating(beat, now - heard) for beat, heard in self._heard.values()]


class Pulse:
    """Takes what is heard, gives pictures. `began` is when it began to hear, in its own clock's seconds."""

    def __init__(self, began: float) -> None:
        self._began = began
        self.requests_since = began
        """From when on it has heard of all requests; earlier than `began` where those of the past were told too."""
        self._ended: Counter[tuple[int, ServiceName, Outcome]] = Counter()
        self._requests: deque[tuple[float, Found]] = deque(maxlen=MAX_REQUESTS)
        self._steps: dict[EngineId, deque[tuple[float, StepSummary]]] = {}
        self._engines: _Roll[EngineHeartbeat] = _Roll()
        self._gateways: _Roll[GatewayHeartbeat] = _Roll()
        self._tracers: _Roll[TracerHeartbeat] = _Roll()

    @override
    def __repr__(self) -> str:
        return f"<Pulse {len(self._requests)} requests, {len(self._steps)} engines>"

    def hear_request(self, found: Found, at: float) -> None:
        """Take a request that ended at `at`."""
        key = int(at), found.service, found.ledger.outcome
        if key not in self._ended and len(self._ended) >= MAX_COUNTS:
            return
        self._ended[key] += 1
        if found.ledger.outcome is Outcome.FINISHED:
            self._requests.append((at, found))

    def hear_steps(self, batch: StageBatch, now: float) -> None:
        """Take what an engine says of its steps."""
        if batch.engine in self._steps or len(self._steps) < MAX_SENDERS:
            kept = self._steps.setdefault(batch.engine, deque(maxlen=MAX_STEP_BATCHES))
            kept.append((now, cleaned(batch.steps)))

    def hear_engine(self, beat: EngineHeartbeat, now: float) -> None:
        """Take a beat."""
        self._engines.hear(beat.engine, beat, now)

    def hear_gateway(self, beat: GatewayHeartbeat, now: float) -> None:
        """Take a beat."""
        self._gateways.hear(beat.gateway, beat, now)

    def hear_tracer(self, beat: TracerHeartbeat, now: float) -> None:
        """Take a beat."""
        self._tracers.hear(beat.tracer, beat, now)

    def now(self, now: float) -> Now:
        """Forget what is older than these seconds and return the picture of the rest."""
        self._forget(now - SPAN_S)
        span_s = _span_s(self.requests_since, now)
        steps_span_s = _span_s(self._began, now)
        engines = self._engines.beating(now)
        engines.sort(key=lambda one: (one.beat.service, one.beat.name, one.beat.engine))
        return Now(
            span_s=span_s,
            services=self._services(span_s, {one.beat.service for one in engines}),
            engines=[(one, self._stepping(one.beat.engine, steps_span_s)) for one in engines],
            gateways=sorted(self._gateways.beating(now), key=lambda one: one.beat.gateway),
            tracers=sorted(self._tracers.beating(now), key=lambda one: one.beat.tracer),
        )

    def _forget(self, before: float) -> None:
        while self._requests and self._requests[0][0] < before:
            self._requests.popleft()
        # A second counts until all of it is too old: rates err by a tenth at most.
        self._ended = Counter({key: n for key, n in self._ended.items() if key[0] + 1 > before})
        for engine, kept in list(self._steps.items()):
            while kept and kept[0][0] < before:
                kept.popleft()
            if not kept:
                del self._steps[engine]

    def _services(self, span_s: float, known: set[ServiceName]) -> list[ServiceNow]:
        outcomes: dict[ServiceName, Counter[Outcome]] = {name: Counter() for name in known}
        for (_, service, outcome), number in self._ended.items():
            outcomes.setdefault(service, Counter())[outcome] += number
        finished: dict[ServiceName, list[Found]] = {}
        for _, found in self._requests:
            finished.setdefault(found.service, []).append(found)
        return [
            _service(name, outcomes[name], finished.get(name, []), span_s)
            for name in sorted(outcomes)
        ]

    def _stepping(self, engine: EngineId, span_s: float) -> Steps:
        told = [steps for _, steps in self._steps.get(engine, ())]
        if not told:
            return Steps()
        steps, busy_us = sum(one.steps for one in told), sum(one.busy_us for one in told)
        tokens = sum(one.decode_tokens for one in told)
        longest = max(told, key=lambda one: one.longest_us)
        return Steps(
            steps_per_s=steps / span_s,
            tokens_per_s=tokens / span_s,
            prefill_per_s=sum(one.prefill_tokens for one in told) / span_s,
            batch=tokens / steps if steps else 0.0,
            wait_share=sum(one.wait_us for one in told) / busy_us if busy_us else 0.0,
            longest_us=longest.longest_us,
            longest_by=longest.longest_by,
            preemptions=sum(one.preemptions for one in told),
            mode=next((one.mode for one in reversed(told) if one.mode), ""),
        )


def _service(
    name: ServiceName, outcomes: Counter[Outcome], finished: list[Found], span_s: float
) -> ServiceNow:
    ledgers = [found.ledger for found in finished]
    columns = zip(*(one.us for one in ledgers), strict=True)
    return ServiceNow(
        service=name,
        per_s=outcomes.total() / span_s,
        outcomes=dict(outcomes),
        first_us=sorted(one.ttft_us for one in ledgers if one.ttft_us),
        token_us=sorted(us for found in finished if (us := found.token_us) is not None),
        wall_us=sorted(one.wall_us for one in ledgers),
        us=[sum(column) for column in columns] or [0] * len(STAGES),
    )
