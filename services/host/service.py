"""The host's shell: takes orders of operators, hears engines, keeps replicas, tells how they are."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from typing_extensions import override

from services.host.keeper import Keeper, wall_us
from services.host.ports import Driver, NotNow, Order, Running
from services.host.replicas import Replicas
from services.host.room import claim_of
from services.host.settings import HostSettings
from shared import logs
from shared.bus import Bus
from shared.clock import loop_clock
from shared.errors import BusError, UserError
from shared.health import HealthState
from shared.ids import HostId
from shared.messages import (
    HEARTBEAT_S,
    EngineHeartbeat,
    HostAnswer,
    HostHeartbeat,
    StartReplica,
    StopReplica,
)
from shared.runtime import Runtime
from shared.spec.reading import from_document

NEWS_S = 0.1
"""Heartbeats come no closer than this, however much changes."""
MAX_ORDERS = 256


class HostService:
    """One host process. Made inside the running loop; `run` once."""

    def __init__(
        self,
        settings: HostSettings,
        bus: Bus,
        driver: Driver,
        *,
        replicas: Replicas,
        me: HostId,
        keep_epoch: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._bus = bus
        self._driver = driver
        self._me = me
        self._name = settings.name or socket.gethostname()
        self._keep_epoch = keep_epoch
        self._kept_epoch = replicas.epoch
        self._clock = loop_clock()
        self._log = logs.get("host").bind(host=me)
        self._keepers: dict[str, Keeper] = {}
        self._group: asyncio.TaskGroup | None = None
        self._changed = asyncio.Event()
        self._nothing_left = asyncio.Event()
        self._beat = 0
        self.replicas = replicas

    @override
    def __repr__(self) -> str:
        return f"<HostService {self._me} {self.replicas}>"

    async def run(self, runtime: Runtime) -> None:
        """Keep replicas until the runtime says stop, then drain them all."""
        self._group = runtime.group
        await self._take_over()
        subscriptions = [
            await self._bus.subscribe(EngineHeartbeat, self._on_beat),
            await self._bus.serve(
                StartReplica, self._on_start, max_pending=MAX_ORDERS, host=self._me
            ),
            await self._bus.serve(
                StopReplica, self._on_stop, max_pending=MAX_ORDERS, host=self._me
            ),
        ]
        beating = runtime.group.create_task(self._beat_forever(), name="host heartbeat")
        runtime.health.move(HealthState.READY)
        self._log.info("host_ready", name=self._name, epoch=self.replicas.epoch)
        await runtime.stop.wait()
        await self._drain()
        for subscription in subscriptions:
            await subscription.close()
        beating.cancel()
        await self._driver.close()

    async def _take_over(self) -> None:
        """Keep what an earlier life left running. Raises `UserError`."""
        try:
            found = await self._driver.found()
        except NotNow as error:
            raise UserError(f"cannot see what runs here: {error}") from error
        for each in found:
            order = each.order
            claim = claim_of(order.spec)
            self.replicas.adopt(order, claim, now_us=wall_us())
            self._log.info("taken_over", replica=order.name)
            self._keep(order, each.running)

    async def _drain(self) -> None:
        self.replicas.is_draining = True
        for name, keeper in self._keepers.items():
            if self.replicas.end(name, now_us=wall_us()):
                keeper.stop(drain_s=self._settings.drain_s)
        self._changed.set()
        while self._keepers:
            self._nothing_left.clear()
            await self._nothing_left.wait()
        self._send_heartbeat()

    # --- orders

    async def _on_start(self, message: StartReplica) -> HostAnswer:
        try:
            spec = from_document(message.spec)
        except UserError as error:
            return HostAnswer(
                accepted=False, refused="spec", reason=str(error), epoch=self.replicas.epoch
            )
        answer, begins = self.replicas.start(message, claim_of(spec), now_us=wall_us())
        self._tell_order("start", message.name, answer)
        if begins:
            order = Order(
                name=message.name,
                service=message.service,
                revision=message.revision,
                spec=spec,
                fingerprint=message.fingerprint,
            )
            self._keep(order)
        elif answer.accepted:
            self._keepers[message.name].look()
        return answer

    async def _on_stop(self, message: StopReplica) -> HostAnswer:
        answer, ends = self.replicas.stop(message, now_us=wall_us())
        self._tell_order("stop", message.name, answer)
        if ends:
            self._keepers[message.name].stop(drain_s=message.drain_s)
            self._changed.set()
        return answer

    def _tell_order(self, verb: str, name: str, answer: HostAnswer) -> None:
        if answer.epoch != self._kept_epoch:
            self._remember(answer.epoch)
        if answer.accepted:
            self._log.info("order", verb=verb, replica=name, epoch=answer.epoch)
        else:
            self._log.warning(
                "order_refused",
                verb=verb,
                replica=name,
                refused=answer.refused,
                reason=answer.reason,
            )

    def _remember(self, epoch: int) -> None:
        """Keep the epoch over the end of this process."""
        try:
            self._keep_epoch(epoch)
            self._kept_epoch = epoch
        except OSError as error:
            self._log.warning("epoch_not_kept", epoch=epoch, reason=str(error))

    def _keep(self, order: Order, running: Running | None = None) -> None:
        assert self._group is not None
        keeper = Keeper(
            order,
            replicas=self.replicas,
            driver=self._driver,
            changed=self._changed.set,
            running=running,
        )
        self._keepers[order.name] = keeper
        self._group.create_task(self._run(keeper), name=f"replica {order.name}")
        self._changed.set()

    async def _run(self, keeper: Keeper) -> None:
        name = keeper.order.name
        await keeper.run()
        del self._keepers[name]
        self.replicas.forget(name)
        self._log.info("replica_gone", replica=name)
        self._changed.set()
        self._nothing_left.set()

    # --- news

    def _on_beat(self, beat: EngineHeartbeat) -> None:
        if self.replicas.heard(beat, now=self._clock(), now_us=wall_us()):
            self._changed.set()

    async def _beat_forever(self) -> None:
        while True:
            self._changed.clear()
            self._send_heartbeat()
            await asyncio.sleep(NEWS_S)
            try:
                async with asyncio.timeout(HEARTBEAT_S - NEWS_S):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _send_heartbeat(self) -> None:
        try:
            self._bus.publish(self.heartbeat())
        except BusError as error:
            self._log.warning("heartbeat_unsent", reason=str(error))

    def heartbeat(self) -> HostHeartbeat:
        """Return how the host is, as others see it."""
        self._beat += 1
        room = self.replicas.room
        return HostHeartbeat(
            host=self._me,
            beat=self._beat,
            name=self._name,
            driver=self._driver.kind,
            zone=self._settings.zone,
            epoch=self.replicas.epoch,
            memory_bytes=room.memory_bytes,
            free_memory_bytes=room.free_memory_bytes,
            cpus=len(room.cores),
            free_cpus=len(room.free_cores),
            gpus=len(room.gpus),
            free_gpus=len(room.free_gpus),
            replicas=self.replicas.states,
            is_draining=self.replicas.is_draining,
        )
