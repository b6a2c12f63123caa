"""The engine's shell: puts a backend on the bus.

Feeds submits, cancels, resends, gateways' heartbeats and ticks to the cores, and carries out what they say.
"""

from __future__ import annotations

import asyncio

from typing_extensions import override

from services.engine.admission import Room, why_not
from services.engine.delivery import Delivery
from services.engine.gateways import Gateways
from services.engine.intake import Answer, Intake
from services.engine.kv_metrics import KvMetrics
from services.engine.metrics import Counts, End, Snapshot
from services.engine.pace import Pace
from services.engine.patience import LEAST_FREE_RATIO, Patience
from services.engine.pool_metrics import PoolMetrics
from services.engine.ports import (
    EngineFailedError,
    InferenceEngine,
    Limits,
    Load,
    Piece,
    RefusedError,
)
from services.engine.settings import EngineSettings
from services.engine.stages import StageDesk
from services.engine.step_counts import StepCounts
from services.engine.streams import Stream, Streams, is_last, key_of
from services.engine.under_way import under_way
from services.engine.warmth.desk import WarmthDesk
from shared import logs
from shared.blackbox.layout import Request
from shared.boot import boot_id
from shared.bus import Bus
from shared.errors import BusError
from shared.health import Health, HealthState
from shared.ids import EngineId
from shared.messages import (
    GATEWAY_GONE_S,
    HEARTBEAT_S,
    Accepted,
    Cancel,
    EngineHeartbeat,
    EngineState,
    Finish,
    GatewayHeartbeat,
    RefuseReason,
    Resend,
    Resent,
    StepQuery,
    StreamError,
    Submit,
    WarmthQuery,
)
from shared.runtime import Runtime

TICK_S = 0.1
MAX_PENDING_SUBMITS = 4096


class EngineService:
    """One engine process. Made inside the running loop; `run` once."""

    def __init__(
        self,
        settings: EngineSettings,
        backend: InferenceEngine,
        bus: Bus,
        *,
        engine: EngineId,
        host: str,
    ) -> None:
        self._settings = settings
        self._backend = backend
        self._bus = bus
        self._engine = engine
        self._host = host
        self._boot = boot_id()
        self._loop = asyncio.get_running_loop()
        self._log = logs.get("engine").bind(engine=engine)
        self._limits: Limits | None = None
        self._health = Health()
        self._beat = 0
        self._pace = Pace()
        self._patience = Patience()
        self._gateways = Gateways(gone_s=GATEWAY_GONE_S)
        self._streams = Streams(settings.ring)
        self.counts = Counts()
        self._delivery = Delivery(bus, engine, self.counts, max_bytes=settings.batch_bytes)
        self._intake = Intake(engine, backend, self._streams, self.counts)
        self.book = backend.book
        """Has each step of the backend, for who listens to them."""
        self._stages = StageDesk(bus, backend.book, service=settings.service, engine=engine)
        self._warmth = WarmthDesk(
            bus,
            backend.book,
            self._streams,
            settings.warmth,
            service=settings.service,
            engine=engine,
        )
        steps = StepCounts()
        backend.book.listeners.append(steps.step)
        self.snapshot = Snapshot(
            self.counts,
            heartbeat=self.heartbeat,
            tokens=lambda: self._streams.completed_tokens,
            ring_bytes=lambda: self._streams.ring_bytes,
            steps=steps,
            mode_changes=lambda: backend.book.mode_changes,
        )

        self.kv = KvMetrics(steps)
        self.pool = PoolMetrics(lambda: self._limits, self._load)

    @override
    def __repr__(self) -> str:
        return f"<EngineService {self._engine} {self._health!r} {self._streams!r}>"

    async def run(self, runtime: Runtime) -> None:
        """Serve until `runtime.stop`, then drain. Raises `EngineFailedError` when the backend cannot start or dies."""
        self._health = runtime.health
        try:
            await self._listen()
            runtime.group.create_task(self._tick_forever(), name="engine tick")
            if await self._start_backend(runtime):
                await self._serve(runtime)
        finally:
            await self._backend.stop()

    def heartbeat(self) -> EngineHeartbeat:
        """Return the engine's state as others see it."""
        limits, load = self._limits, self._load()
        return EngineHeartbeat(
            engine=self._engine,
            service=self._settings.service,
            name=self._settings.name,
            beat=self._beat,
            state=EngineState(self._health.state.value),
            backend=self._settings.backend,
            version=self._settings.version,
            zone=self._settings.zone,
            host=self._host,
            boot=self._boot,
            max_model_len=limits.max_model_len if limits else 0,
            max_streams=limits.max_streams if limits else 0,
            resumes=limits.resumes if limits else False,
            running=load.running,
            waiting=load.waiting + self._intake.pending,
            outstanding_tokens=self._streams.outstanding_tokens,
            free_blocks=load.free_blocks,
            total_blocks=limits.total_blocks if limits else 0,
            block_tokens=limits.block_tokens if limits else 0,
            step=load.step,
            step_age_s=load.step_age_s,
            step_bound_s=self._patience.bound_s(is_calm=self._is_calm(load)),
            tokens_per_s=self._pace.per_s,
            reason=self._health.reason,
            free_runs=load.free_runs,
            largest_free_run=load.largest_free_run,
            promised_blocks=load.promised_blocks,
            reserved_blocks=load.reserved_blocks,
            waiting_for_blocks=load.blocked,
            warmth_seq=self._warmth.seq,
        )

    def under_way(self) -> list[Request]:
        """Return the requests that are answered now, the oldest first."""
        return under_way(self._streams, self.book)

    # --- life

    async def _listen(self) -> None:
        serve, subscribe, engine = self._bus.serve, self._bus.subscribe, self._engine
        await serve(Submit, self._on_submit, max_pending=MAX_PENDING_SUBMITS, engine=engine)
        await serve(Resend, self._on_resend, engine=engine)
        await serve(StepQuery, self._stages.on_query, engine=engine)
        await serve(WarmthQuery, self._warmth.on_query, engine=engine)
        await subscribe(Cancel, self._on_cancel, engine=engine)
        await subscribe(GatewayHeartbeat, self._on_gateway_heartbeat)

    async def _start_backend(self, runtime: Runtime) -> bool:
        """Return whether the backend became ready before we were told to stop. Raises `EngineFailedError`."""
        began_at = self._loop.time()
        limit = asyncio.timeout(None)
        stopping = runtime.group.create_task(self._end_when_stopped(runtime, limit))
        try:
            async with limit:
                self._limits = await self._backend.start(self._on_piece)
        except TimeoutError:
            if not runtime.stop.is_set():
                raise
            return False
        except EngineFailedError as error:
            self._fail(str(error))
            raise
        finally:
            stopping.cancel()
        if runtime.stop.is_set():
            return False
        limits = self._limits
        self._warmth.begin(
            tells_blocks=limits.tells_blocks,
            pool_tokens=limits.total_blocks * limits.block_tokens,
            store=limits.store,
        )
        self._health.move(HealthState.READY)
        self._send_heartbeat()
        started_s = round(self._loop.time() - began_at, 3)
        self._log.info("engine_ready", model=self._limits.model, started_s=started_s)
        return True

    async def _end_when_stopped(self, runtime: Runtime, limit: asyncio.Timeout) -> None:
        await runtime.stop.wait()
        limit.reschedule(self._loop.time())

    async def _serve(self, runtime: Runtime) -> None:
        failed = runtime.group.create_task(self._backend.failed(), name="engine failure")
        stopping = runtime.group.create_task(runtime.stop.wait(), name="engine stop")
        await asyncio.wait((failed, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not failed.done():
            await self._drain(failed)
        if failed.done():
            reason = failed.result()
            self._fail(reason)
            raise EngineFailedError(reason)
        failed.cancel()
        stopping.cancel()

    async def _drain(self, failed: asyncio.Task[str]) -> None:
        """Let what runs finish within `drain_s`; hand the rest back to the gateways."""
        if self._health.state is HealthState.READY:
            self._health.move(HealthState.DRAINING)
        self._send_heartbeat()
        self._log.info("engine_draining", streams=len(self._streams.live))
        ends_at = self._loop.time() + self._settings.drain_s
        while self._streams.live and self._loop.time() < ends_at and not failed.done():
            await asyncio.wait((failed,), timeout=TICK_S / 2)
        if failed.done():
            return
        error = StreamError(message="the engine is stopping")
        refusal = RefusedError(RefuseReason.DRAINING, "the engine is stopping")
        for stream in list(self._streams.live.values()):
            self._cut(stream, End.DRAINED, error, refusal)

    def _fail(self, reason: str) -> None:
        """Say that the backend is dead, and hand all streams back."""
        self._health.move(HealthState.FAILED, reason)
        self._log.error("engine_failed", reason=reason, streams=len(self._streams.live))
        error = StreamError(message=f"the engine failed: {reason}")
        refusal = RefusedError(RefuseReason.NOT_READY, error.message)
        for stream in list(self._streams.live.values()):
            self._cut(stream, End.ERROR, error, refusal)
        self._send_heartbeat()

    # --- messages

    async def _on_submit(self, submit: Submit) -> Answer:
        self._gateways.heard(submit.gateway)
        answer = await self._intake.answer(submit, self._limits, self._why_not(submit))
        if isinstance(answer, Accepted):
            self._warmth.accepted(submit.chain, answer.prompt_tokens)
        return answer

    def _on_cancel(self, cancel: Cancel) -> None:
        self._gateways.heard(cancel.gateway)
        key = key_of(cancel.gateway, cancel.stream)
        stream = self._streams.live.get(key)
        if stream is not None:
            self._drop(stream, End.CANCELLED)
            return
        self._streams.drop_finished(key)
        self._intake.remember_cancel(key, now=self._loop.time())

    async def _on_resend(self, resend: Resend) -> Resent:
        self._gateways.heard(resend.gateway)
        self.counts.resends += 1
        deltas = self._streams.resend(
            key_of(resend.gateway, resend.stream),
            resend.from_seq,
            max_bytes=self._settings.batch_bytes,
        )
        if deltas is None:
            self.counts.resends_gone += 1
            return Resent(engine=self._engine, stream=resend.stream, gone=True)
        return Resent(engine=self._engine, stream=resend.stream, deltas=deltas)

    def _on_gateway_heartbeat(self, beat: GatewayHeartbeat) -> None:
        self._gateways.heard(beat.gateway)

    def _why_not(self, submit: Submit) -> RefusedError | None:
        """Return why this submit cannot be taken now."""
        limits, load = self._limits, self._load()
        max_streams = limits.max_streams if limits else 0
        room = Room(
            max_streams=max_streams,
            resumes=limits.resumes if limits else False,
            max_waiting=self._settings.max_waiting,
            waiting=load.waiting + self._intake.pending,
            free=max(0, max_streams - load.running),
            outstanding_tokens=self._streams.outstanding_tokens,
            tokens_per_s=self._pace.per_s,
        )
        return why_not(submit, self._health, room)

    # --- streams

    def _on_piece(self, key: str, piece: Piece) -> None:
        stream = self._streams.live.get(key)
        if stream is None:
            self.counts.stray_pieces += 1
            return
        delta, size = self._streams.piece(stream, piece)
        self._delivery.send(stream.gateway, delta, size)
        if piece.extra is not None and is_last(piece):
            self._streams.finish(stream, now=self._loop.time())
            is_error = piece.extra.error is not None
            self.counts.ends[End.ERROR if is_error else End.COMPLETE] += 1

    def _cut(
        self, stream: Stream, end: End, error: StreamError | None, refusal: RefusedError
    ) -> None:
        """End a stream and tell its gateway: by its last deltas, or where the submit is unanswered by the refusal."""
        finish = Finish.ERROR if error else Finish.TIMEOUT
        spent = self._backend.spent(stream.key)
        sized = self._streams.cut(stream, finish, error, spent=spent, now=self._loop.time())
        self._let_go(stream, end, refusal)
        for delta, size in sized:
            self._delivery.send(stream.gateway, delta, size)

    def _drop(self, stream: Stream, end: End) -> None:
        """End a stream that nobody reads any more."""
        self._streams.drop(stream)
        self._let_go(stream, end, RefusedError(RefuseReason.INVALID, f"ended by us: {end}"))

    def _let_go(self, stream: Stream, end: End, refusal: RefusedError) -> None:
        self.counts.ends[end] += 1
        self._backend.cancel(stream.key)
        self._intake.interrupt(stream.key, refusal)

    # --- time

    async def _tick_forever(self) -> None:
        """Look at the clock each `TICK_S`, and beat each `HEARTBEAT_S`."""
        beat_at = self._loop.time()
        while True:
            now = self._loop.time()
            self._tick(now)
            if now >= beat_at:
                self._send_heartbeat()
                beat_at = max(beat_at + HEARTBEAT_S, now)
            await asyncio.sleep(TICK_S)

    def _tick(self, now: float) -> None:
        load = self._load()
        self._patience.observe(load.step, load.step_age_s, is_calm=self._is_calm(load), now=now)
        late = RefusedError(
            RefuseReason.OVERLOADED, "the deadline passed before the engine answered"
        )
        for stream in self._streams.due(now):
            self._cut(stream, End.TIMEOUT, None, late)
        for gateway in self._gateways.tick(now, is_listening=self._bus.is_answering):
            orphans = self._streams.of_gateway(gateway)
            for stream in orphans:
                self._stages.adopt(stream, self._backend.spent(stream.key))
                self._drop(stream, End.GATEWAY_GONE)
            if orphans:
                self._log.warning("gateway_gone", gateway=gateway, streams=len(orphans))
        self._stages.publish()
        self._warmth.publish()
        self._streams.forget_old(now)
        self._intake.forget_old(now)

    def _send_heartbeat(self) -> None:
        self._pace.update(self._streams.completed_tokens, now=self._loop.time())
        self._beat += 1
        try:
            self._bus.publish(self.heartbeat())
        except BusError as error:
            self._log.warning("heartbeat_unsent", reason=str(error))

    def _is_calm(self, load: Load) -> bool:
        """Return whether the steps are decode steps, as far as we can know."""
        pool_blocks = self._limits.total_blocks if self._limits else 0
        has_room = load.free_blocks >= LEAST_FREE_RATIO * pool_blocks
        return has_room and not load.waiting and self._streams.all_begun

    def _load(self) -> Load:
        """Return the backend's load; before it has started there is none."""
        return self._backend.load() if self._limits is not None else Load()
