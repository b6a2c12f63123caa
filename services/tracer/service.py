"""The tracer's shell: feeds ledgers, orphans and black boxes to the cores, ships what they keep, tells how it is.

Several tracers share the work: ledgers and stage news reach one of them each (a queue group), black boxes reach all.
"""

from __future__ import annotations

import asyncio
import random

from typing_extensions import override

from services.tracer import wire
from services.tracer.attributes import Hidden
from services.tracer.holding import Holding, Item
from services.tracer.metrics import TracerCollector, TracerCounts
from services.tracer.outbox import Batch, Outbox, Parcel
from services.tracer.policies import PolicyOf
from services.tracer.ports import Answer, Exporter, Later, Never, Taken
from services.tracer.request_attributes import Context
from services.tracer.request_metrics import RequestMetrics
from services.tracer.restraint import WINDOW_S, Restraint
from services.tracer.sampling import Sampler
from services.tracer.settings import TracerSettings
from services.tracer.spans import trace_of
from shared import logs
from shared.bus import Bus
from shared.clock import Clock, loop_clock
from shared.errors import BusError
from shared.health import HealthState
from shared.ids import EngineId, TracerId
from shared.messages import (
    HEARTBEAT_S,
    BlackBox,
    FoundBlackBox,
    LedgerBatch,
    StageBatch,
    TracerHeartbeat,
)
from shared.metrics import build_version
from shared.quiet import Quiet
from shared.runtime import Runtime

QUEUE = "tracer"
EVERYWHERE = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared, not bound
TICK_S = 0.1
ENGINE_QUIET_S = 30.0
"""An engine that was not heard of for so long does not share the tracer's cost any more."""


class TracerService:
    """One tracer process. Made inside the running loop; `run` once. Without an exporter it counts and makes no trace."""

    def __init__(
        self,
        settings: TracerSettings,
        bus: Bus,
        exporter: Exporter | None,
        *,
        policies: PolicyOf,
        tracer: TracerId,
        cpu_clock: Clock,
    ) -> None:
        self._settings = settings
        self._bus = bus
        self._exporter = exporter
        self._policies = policies
        self._tracer = tracer
        self._clock = loop_clock()
        self._cpu_clock = cpu_clock
        self._log = logs.get("tracer").bind(tracer=tracer)
        self._quiet = Quiet(self._clock)
        self._version = build_version()
        self._hidden: dict[tuple[str, ...], Hidden] = {}
        self._engines: dict[EngineId, float] = {}
        self._beat = 0
        self._more = asyncio.Event()
        self._holding = Holding()
        self._restraint = Restraint()
        self._sampler = Sampler(
            policies, limit_per_s=settings.max_traces_per_s, restraint=self._restraint
        )
        self.outbox = Outbox(settings.outbox)
        self.counts = TracerCounts()
        self.collector = TracerCollector(self.counts, self.outbox, self._restraint)
        self.requests = RequestMetrics()

    @override
    def __repr__(self) -> str:
        return f"<TracerService {self._tracer} ledgers={self.counts.ledgers} waiting={len(self.outbox)}>"

    async def run(self, runtime: Runtime) -> None:
        """Trace until the runtime says stop, then ship what waits within `drain_s`."""
        subscriptions = [
            await self._bus.subscribe(LedgerBatch, self.on_ledgers, queue=QUEUE),
            await self._bus.subscribe(StageBatch, self.on_stages, queue=QUEUE),
            await self._bus.subscribe(BlackBox, self._on_box),
            await self._bus.subscribe(FoundBlackBox, self._on_box),
        ]
        self._bus.on_loss(self._on_loss)
        runtime.group.create_task(self._tick_forever(), name="tracer tick")
        runtime.group.create_task(self._ship_forever(), name="tracer export")
        runtime.health.move(HealthState.READY)
        self._log.info("tracer_ready", exports=self._exporter is not None)
        await runtime.stop.wait()
        for subscription in subscriptions:
            await subscription.close()
        await self._drain()

    # --- messages

    def on_ledgers(self, batch: LedgerBatch) -> None:
        """Take in the ledgers of a gateway and service."""
        self.requests.observe(batch)
        now = self._clock()
        counts, holding = self.counts, self._holding
        for ledger in batch.ledgers:
            counts.ledgers += 1
            if ledger.engine:
                self._engines[ledger.engine] = now
            item = Item(batch.service, batch.gateway, ledger)
            if not holding.ledger(item, now):
                self._decide(item, now)

    def on_stages(self, batch: StageBatch) -> None:
        """Take in an engine's news: what it did, and the requests whose gateway is gone."""
        self.requests.observe_stages(batch)
        self._engines[batch.engine] = self._clock()
        if batch.orphans:
            self.counts.orphans += len(batch.orphans)
            self._holding.orphans(batch, self._clock())

    def _on_box(self, box: BlackBox) -> None:
        self.counts.boxes += 1
        self._holding.box(box)

    def _on_loss(self, reason: str) -> None:
        self.counts.missed += 1

    def _let_go(self, now: float, *, all_of_them: bool = False) -> None:
        """Trace what need not wait any more. Orphans are counted only now: nobody else has told of them."""
        for item in self._holding.due(now, all_of_them=all_of_them):
            if item.is_orphan:
                told = LedgerBatch(
                    service=item.service, gateway=item.gateway, ledgers=[item.ledger]
                )
                self.requests.observe(told)
            self._decide(item, now)

    def _decide(self, item: Item, now: float) -> None:
        """Keep the request's trace or not."""
        if self._exporter is None:
            return
        verdict = self._sampler.decide(item.service, item.ledger, now=now)
        self.counts.decided(verdict)
        if not verdict.keep:
            return
        policy = self._policies.of(item.service)
        context = Context(
            service=item.service,
            gateway=item.gateway,
            trace_state=verdict.trace_state,
            reason=verdict.reason.value,
            max_spans=policy.max_spans,
            hidden=self._hidden_of(policy.sensitive),
            stages=policy.stages,
            boxes=self._holding.boxes,
        )
        spans = wire.spans(trace_of(item.ledger, context))
        self.outbox.add(Parcel(item.service, spans, policy.export_timeout_s, now))
        self._more.set()

    def _hidden_of(self, names: tuple[str, ...]) -> Hidden:
        """Return the one `Hidden` of these names: encoded groups are remembered by it."""
        hidden = self._hidden.get(names)
        if hidden is None:
            hidden = self._hidden[names] = Hidden(names)
        return hidden

    # --- export

    async def _ship_forever(self) -> None:
        while True:
            due_at = self.outbox.due_at()
            now = self._clock()
            if due_at is not None and due_at <= now:
                await self.ship()
                continue
            self._more.clear()
            try:
                async with asyncio.timeout(None if due_at is None else due_at - now):
                    await self._more.wait()
            except TimeoutError:
                continue

    async def ship(self) -> None:
        """Hand one batch to the collector; see `Outbox.take`."""
        assert self._exporter is not None
        batch = self.outbox.take()
        request = wire.request(batch.by_service(), version=self._version)
        began_at = self._clock()
        answer: Answer = Later("interrupted")
        try:
            answer = await self._exporter.export(request, timeout_s=batch.timeout_s)
        except Exception as error:  # noqa: BLE001 - whatever a collector answers, it costs no more than a batch's delay
            answer = Later(f"{type(error).__name__}: {error}")
        finally:
            now = self._clock()
            self.outbox.settle(answer, now=now, draw=random.random())  # noqa: S311 - spreads pauses
            self.counts.exported(now - began_at)
            self._tell(answer, batch, len(request))

    def _tell(self, answer: Answer, batch: Batch, raw_bytes: int) -> None:
        match answer:
            case Taken(rejected_spans=rejected, message=message):
                self.counts.raw_bytes += raw_bytes
                self.counts.wire_bytes += answer.wire_bytes
                self.counts.rejected_spans += rejected
                if (rejected or message) and (times := self._quiet.due("partial")):
                    self._log.warning("spans_rejected", spans=rejected, reason=message, times=times)
            case Later(why=why, after_s=after_s):
                if times := self._quiet.due("later"):
                    self._log.warning(
                        "export_failed",
                        reason=why,
                        after_s=after_s,
                        waiting=len(self.outbox),
                        times=times,
                    )
            case Never(why=why):
                if times := self._quiet.due("never"):
                    self._log.error(
                        "export_refused", reason=why, traces=len(batch.parcels), times=times
                    )

    async def _drain(self) -> None:
        """Ship what is held and what waits, as far as the collector takes it within `drain_s`."""
        now = self._clock()
        self._let_go(now, all_of_them=True)
        ends_at = now + self._settings.drain_s
        while len(self.outbox) and self._clock() < ends_at:  # noqa: ASYNC110 - the exporting task takes them
            await asyncio.sleep(TICK_S / 2)
        if left := len(self.outbox):
            self._log.warning("traces_unsent", traces=left)

    # --- time

    async def _tick_forever(self) -> None:
        beat_at = self._clock()
        window_at, cpu_at = beat_at, self._cpu_clock()
        while True:
            now = self._clock()
            self._let_go(now)
            if now >= beat_at:
                self._send_heartbeat()
                beat_at = max(beat_at + HEARTBEAT_S, now)
            if now - window_at >= WINDOW_S:
                cpu_s = self._cpu_clock()
                self._measure(cpu_s - cpu_at, window_s=now - window_at, now=now)
                window_at, cpu_at = now, cpu_s
            await asyncio.sleep(TICK_S)

    def _measure(self, cpu_s: float, *, window_s: float, now: float) -> None:
        quiet = [engine for engine, at in self._engines.items() if now - at > ENGINE_QUIET_S]
        for engine in quiet:
            del self._engines[engine]
        level = self._restraint.level
        self._restraint.measure(cpu_s, window_s=window_s, engines=len(self._engines))
        if self._restraint.level != level:
            share = round(self._restraint.share, 4)
            self._log.warning("restraint_changed", level=self._restraint.level, cpu_share=share)

    def _send_heartbeat(self) -> None:
        self._beat += 1
        try:
            self._bus.publish(self.heartbeat())
        except BusError as error:
            self._log.warning("heartbeat_unsent", reason=str(error))

    def heartbeat(self) -> TracerHeartbeat:
        """Return how the tracer is, as others see it."""
        settings, sent = self._settings, self.outbox.counts
        port = settings.metrics_port
        host = "127.0.0.1" if settings.metrics_host in EVERYWHERE else settings.metrics_host
        return TracerHeartbeat(
            tracer=self._tracer,
            beat=self._beat,
            ledgers=self.counts.ledgers,
            kept=sum(self.counts.kept.values()),
            exported=sent.exported,
            dropped=sent.dropped + sent.rejected,
            missed=self.counts.missed,
            level=self._restraint.level,
            url=f"http://{host}:{port}/metrics" if port else "",
        )
