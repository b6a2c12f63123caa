"""The gateway's shell: feeds heartbeats, tokens and ticks to the cores, runs the doors, and stops in order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Protocol

from typing_extensions import override

from services.gateway.calls import Calls
from services.gateway.capture_desk import CaptureDesk
from services.gateway.gates import Gates
from services.gateway.ledger.book import LedgerBook
from services.gateway.lookout import Lookout, Loss
from services.gateway.metrics import GatewayMetrics
from services.gateway.placement import Own, Placement
from services.gateway.readings import gateway_readings
from services.gateway.reception import Reception
from services.gateway.repair import Repair
from services.gateway.routing import Router
from services.gateway.rules import Rules
from services.gateway.settings import GatewaySettings
from services.gateway.streams import StreamTable
from services.gateway.warmth_desk import WarmthDesk
from shared import logs
from shared.clock import loop_clock, stamp_clock, unix_time_s, wall_time_s
from shared.errors import BusError, UserError
from shared.health import HealthState
from shared.ids import GatewayId
from shared.keys import KeyFile
from shared.messages import (
    HEARTBEAT_S,
    EngineHeartbeat,
    EngineState,
    GatewayHeartbeat,
    ServiceRecord,
    TokenBatch,
)
from shared.quiet import Quiet
from shared.record_view import View
from shared.records import Records
from shared.runtime import Runtime
from shared.typedbus import TypedBus

TICK_S = 0.1
FIRST_BEATS_S = 2 * HEARTBEAT_S
SLOW_TICK_S = 1.0
STOP_S = 3.0
"""What stopping takes after the drain: errors to those that are still waiting, idle connections closed, the bus flushed."""


class Door(Protocol):
    """A way in for clients."""

    url: str
    """Where clients reach it; empty: nothing to show."""

    async def start(self) -> None:
        """Take requests from now on."""
        ...

    async def stop_taking(self) -> None:
        """Take no new ones; those under way go on."""
        ...

    async def stop(self) -> None:
        """End; every call is over by now."""
        ...

    def tick(self) -> None:
        """Called about once a second."""
        ...


class GatewayService:
    """One gateway process. Made inside the running loop; add doors, then `run` once."""

    def __init__(
        self,
        settings: GatewaySettings,
        bus: TypedBus,
        runtime: Runtime,
        *,
        gateway: GatewayId,
        boot: str,
        keys: KeyFile,
    ) -> None:
        """`boot`: of this host's kernel, as engines tell theirs (`EngineHeartbeat.boot`)."""
        self._settings = settings
        self._bus = bus
        self._runtime = runtime
        self.group = runtime.group
        self._gateway = gateway
        self._clock = loop_clock()
        self._log = logs.get("gateway").bind(gateway=gateway)
        self._quiet = Quiet(self._clock)
        self._beat = 0
        self._doors: Sequence[Door] = ()
        self._heard = asyncio.Event()
        self._keys = keys
        self._router = Router(settings.routing, seed=int(gateway[1:], 16), zone=settings.zone)
        self.warmth = WarmthDesk(bus, self._router.warmth, gateway=gateway)
        self.lookout = Lookout(
            self._router,
            settings.routing,
            own=gateway,
            over_commit=settings.admission.over_commit,
        )
        self.table = StreamTable(settings.streams)
        self.gates = Gates(settings.admission)
        self.metrics = GatewayMetrics()
        self.rules = Rules(settings.sharing)
        self._placement = Placement(
            bus,
            self.lookout,
            self._router,
            self.table,
            own=Own(gateway, boot, self.rules),
            submit_timeout_s=settings.call.submit_timeout_s,
        )
        self.ledgers = self._new_ledgers()
        self.calls = Calls(
            self._placement,
            self.gates,
            self.metrics,
            self.ledgers,
            settings=settings.call,
            clock=self._clock,
        )
        self._capture = CaptureDesk(bus, self.calls.captures, gateway=gateway, clock=self._clock)
        self.repair = self._new_repair()
        self.reception = Reception(keys, settings.limits, runtime.health, self.rules)
        self._show_figures()

    def _new_repair(self) -> Repair:
        return Repair(
            self._bus,
            self.table,
            gateway=self._gateway,
            calls=self.calls,
            placement=self._placement,
            group=self.group,
        )

    @override
    def __repr__(self) -> str:
        return f"<GatewayService {self._gateway} {len(self.calls)} calls {self.lookout!r}>"

    @property
    def held_choices(self) -> int:
        """Choices that this gateway counts at engines; 0 when nothing runs."""
        return self._router.book.own_choices

    def _new_ledgers(self) -> LedgerBook:
        return LedgerBook(
            self.lookout.services,
            stamp=stamp_clock(),
            wall_time_s=wall_time_s,
            observe=self.metrics.entered,
        )

    def _show_figures(self) -> None:
        self.metrics.watch_bus(self._bus)
        self.metrics.watch(gateway_readings(self))
        self.metrics.watch_gates(self.gates)

    async def run(self, doors: Sequence[Door]) -> None:
        """Serve until the runtime says stop, then drain."""
        self._doors = doors
        await self._listen()
        self._runtime.group.create_task(self._tick_forever(), name="gateway tick")
        await self._first_beats()
        for door in doors:
            await door.start()
        self._runtime.health.move(HealthState.READY)
        self._log.info("gateway_ready", url=self._url, keys=len(self._keys))
        await self._runtime.stop.wait()
        await self._drain()

    def not_ready(self) -> str:
        """Return why a request would not be served now; empty where it would."""
        health = self._runtime.health
        if not health.is_ready:
            return f"{health.state}{': ' if health.reason else ''}{health.reason}"
        if not self._bus.is_connected:
            return "the message bus is away"
        if not self._bus.is_answering:
            return "the message bus does not answer"
        return "" if self.lookout.ready() else "no engine is ready"

    def reload_keys(self, *, must: bool = False) -> None:
        """Read the keys file again where it changed; a broken one is told, and the old keys stay in force."""
        try:
            if must:
                self._keys.reload()
            elif not self._keys.reload_if_changed():
                return
        except UserError as error:
            self._log.error("keys_not_reloaded", reason=str(error))
        else:
            self._log.info("keys_reloaded", keys=len(self._keys))

    @property
    def _url(self) -> str:
        return next((door.url for door in self._doors if door.url), "")

    async def _listen(self) -> None:
        subscribe = self._bus.subscribe
        self._bus.on_loss(self.repair.on_loss)
        await subscribe(TokenBatch, self._on_tokens, gateway=self._gateway)
        await subscribe(EngineHeartbeat, self._on_engine)
        await self.warmth.listen()
        await self._capture.listen()
        await subscribe(GatewayHeartbeat, self._on_gateway)
        records = await Records.open(self._bus)
        await records.watch(ServiceRecord, self._on_services, group=self.group)

    def _on_services(self, view: View[ServiceRecord]) -> None:
        self.rules.take(view.entries)
        for service, reason in self.rules.unreadable.items():
            self._log.warning("service_unreadable", service=service, reason=reason)

    async def _first_beats(self) -> None:
        """Return when an engine is ready, or when any would have been heard; on a shared port others answer meanwhile."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_BEATS_S):
                await self._heard.wait()

    def _on_tokens(self, batch: TokenBatch) -> None:
        self.lookout.engine_talked(batch.engine)
        self.repair.on_batch(batch)

    def _on_engine(self, beat: EngineHeartbeat) -> None:
        if beat.state is EngineState.READY:
            self._heard.set()
        loss = self.lookout.engine_beat(beat, now=self._clock(), unix_s=unix_time_s())
        if loss is not None:
            self._give_up(loss)
        if self.lookout.beat_of(beat.service, beat.engine) is not None:
            self.warmth.beat(beat)
        self._set_limit(beat.service)

    def _on_gateway(self, beat: GatewayHeartbeat) -> None:
        self.lookout.gateway_beat(beat)

    def _give_up(self, loss: Loss) -> None:
        self._log.warning("engine_lost", engine=loss.engine, why=loss.why)
        self.calls.engine_lost(loss.engine, loss.why)

    def _set_limit(self, service: str) -> None:
        verdicts = self.gates.set_limit(service, self.lookout.limit(service), now=self._clock())
        if verdicts:
            self.calls.deliver(verdicts)

    async def _tick_forever(self) -> None:
        beat_at = slow_at = self._clock()
        while True:
            now = self._clock()
            self._watch_silence(now)
            self.calls.tick()
            self._send_ledgers()
            if now >= beat_at:
                self._send_heartbeat()
                beat_at = max(beat_at + HEARTBEAT_S, now)
            if now >= slow_at:
                self._slow_tick()
                slow_at = now + SLOW_TICK_S
            await asyncio.sleep(TICK_S)

    def _watch_silence(self, now: float) -> None:
        for loss in self.lookout.tick(now, is_listening=self._bus.is_answering):
            self._give_up(loss)
            self._router.book.forget(loss.engine)
            self._router.warmth.forget(loss.engine)
            self._set_limit(loss.service)

    def _slow_tick(self) -> None:
        self.repair.tick()
        self.ledgers.refresh()
        self.calls.captures.tick(now=self._clock())
        self.reload_keys()
        for door in self._doors:
            door.tick()

    def _send_heartbeat(self) -> None:
        self._beat += 1
        try:
            self._bus.publish(
                GatewayHeartbeat(
                    gateway=self._gateway,
                    beat=self._beat,
                    open_streams=len(self.table),
                    queued=self.gates.waiting,
                    url=self._url,
                    engines=self.lookout.ready(),
                )
            )
        except BusError as error:
            self._log.warning("heartbeat_unsent", reason=str(error))

    def _send_ledgers(self) -> None:
        """Publish what has ended since the last time; while the bus is away it waits."""
        if not (self.ledgers.waiting and self._bus.is_connected):
            return
        for batch in self.ledgers.batches(self._gateway):
            try:
                self._bus.publish(batch)
            except BusError as error:
                self.ledgers.dropped += len(batch.ledgers)
                if times := self._quiet.due("ledgers"):
                    self._log.warning("ledgers_unsent", reason=str(error), times=times)

    async def _drain(self) -> None:
        """Take nothing new, let answers finish within `drain_s`, tell the rest, close the doors."""
        for door in self._doors:
            await door.stop_taking()
        self._log.info("gateway_draining", calls=len(self.calls))
        await self.calls.until_idle(timeout_s=self._settings.drain_s)
        self.calls.stop()
        for door in self._doors:
            await door.stop()
        self._send_ledgers()
