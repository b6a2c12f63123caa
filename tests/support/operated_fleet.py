"""A whole fleet in virtual time on the memory bus: real operators, real hosts with drivers without processes, engines that only beat.

Operators and hosts can be killed at any moment, an operator also in the middle of what it sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from typing_extensions import override

from services.host.fake_driver import FakeDriver
from services.host.replicas import Replicas
from services.host.room import Room
from services.host.service import HostService
from services.host.settings import HostSettings
from services.operator.service import KINDS, Operator
from services.operator.settings import OperatorSettings
from shared.ids import EngineId, HostId, OperatorId, ServiceName
from shared.membus import MemoryBus, MemoryHub
from shared.memwire import MemoryWire
from shared.messages import (
    ROUTES,
    DesiredRecord,
    EngineHeartbeat,
    EngineState,
    ServiceRecord,
    StatusRecord,
)
from shared.records import Records
from shared.runtime import Runtime
from shared.spec.model import LLMService
from shared.spec.revision import revision
from shared.spec.writing import to_document

BEAT_S = 0.5
LOAD_S = 2.0
"""From the start of a life to its first `ready`."""


class DoomedWire(MemoryWire):
    """A wire whose process dies with its n-th frame that is no heartbeat: before it is sent, or just after."""

    def __init__(self, hub: MemoryHub, *, doom: int | None, is_sent: bool) -> None:
        super().__init__(hub)
        self.sent = 0
        self.on_doom: Callable[[], object] = lambda: None
        self._doom = doom
        self._is_sent = is_sent
        self._is_dead = False

    @override
    def send(self, subject: str, payload: bytes, **more: Any) -> None:
        if self._is_dead:
            return
        if not subject.startswith("hr.heartbeat"):
            self.sent += 1
            if self.sent == self._doom:
                if self._is_sent:
                    super().send(subject, payload, **more)
                self.die()
                return
        super().send(subject, payload, **more)

    def die(self) -> None:
        """End the process: nothing leaves it any more, nothing reaches it."""
        self._is_dead = True
        self.cut()
        self.on_doom()


class _Life:
    """One process of the fleet: a task with a group of its own, and the wire that dies with it."""

    def __init__(self, wire: DoomedWire) -> None:
        self.wire = wire
        self.runtime: Runtime | None = None
        self.bus: MemoryBus | None = None
        self.task: asyncio.Task[None] | None = None
        wire.on_doom = self._cancel

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class Fleet:
    """Use as an asynchronous context; everything in it is ended with it."""

    def __init__(self) -> None:
        self.hub = MemoryHub()
        self.operators: list[Operator] = []
        self.drivers: dict[HostId, FakeDriver] = {}
        self.most_of: dict[ServiceName, int] = {}
        """The most lives of a service at the same time."""
        self._lives: dict[str, _Life] = {}
        self._born: dict[int, float] = {}
        self._group = asyncio.TaskGroup()
        self._engines: MemoryBus | None = None
        self.records: Records | None = None
        self._beats = 0

    async def __aenter__(self) -> Fleet:
        await self._group.__aenter__()
        console = await MemoryBus.join(self.hub, group=self._group, name="console")
        self._engines = await MemoryBus.join(self.hub, group=self._group, name="engine")
        self.records = await Records.open(console)
        await self.records.ensure(*KINDS)
        self._group.create_task(self._engines_forever())
        return self

    async def __aexit__(self, *error: object) -> None:
        for life in self._lives.values():
            if life.task is not None:
                life.task.cancel()
        with suppress(asyncio.CancelledError):
            self._group._abort()  # type: ignore[attr-defined]
            await self._group.__aexit__(None, None, None)

    # --- processes

    def start_operator(
        self, name: str, *, doom: int | None = None, is_sent: bool = False
    ) -> DoomedWire:
        """Start an operator; with `doom` it dies with its so-many-th frame."""
        life = self._lives[name] = _Life(DoomedWire(self.hub, doom=doom, is_sent=is_sent))

        async def main(runtime: Runtime, bus: MemoryBus) -> None:
            operator = Operator(
                OperatorSettings(),
                bus,
                await Records.open(bus),
                me=OperatorId(name),
                wall_us=lambda: int(asyncio.get_running_loop().time() * 1e6),
            )
            self.operators.append(operator)
            await operator.run(runtime)

        self._start(name, life, main)
        return life.wire

    def start_host(self, name: str, *, machine: str = "", cores: int = 64) -> FakeDriver:
        """Start a host with nothing on it."""
        life = self._lives[name] = _Life(DoomedWire(self.hub, doom=None, is_sent=False))
        driver = self.drivers[HostId(name)] = FakeDriver(drain_takes_s=0.5, prepare_takes_s=0.2)
        settings = HostSettings(folder="/nowhere", models="/nowhere", name=machine or name)

        async def main(runtime: Runtime, bus: MemoryBus) -> None:
            room = Room(memory_bytes=64 << 30, cores=list(range(cores)), gpus=(), ports=())
            host = HostService(settings, bus, driver, replicas=Replicas(room), me=HostId(name))
            await host.run(runtime)

        self._start(name, life, main)
        return driver

    def _start(self, name: str, life: _Life, main: Callable[[Runtime, MemoryBus], Any]) -> None:
        async def process() -> None:
            with suppress(asyncio.CancelledError):
                async with asyncio.TaskGroup() as group:
                    runtime = life.runtime = Runtime(group)
                    bus = life.bus = MemoryBus(life.wire, group=group, name=name)
                    await bus.open()
                    await main(runtime, bus)
                    await bus.close()
                    raise asyncio.CancelledError

        life.task = self._group.create_task(process(), name=name)

    def kill(self, name: str) -> None:
        """End a process as kill -9 does; a host's replicas end with it."""
        self._lives.pop(name).wire.die()
        self.drivers.pop(HostId(name), None)

    def cut(self, name: str) -> None:
        """Take a process off the network; a host's engines with it. They go on."""
        self._lives[name].wire.cut()

    def heal(self, name: str) -> None:
        """Let it reconnect."""
        bus = self._lives[name].bus
        assert bus is not None
        bus.heal()

    def pause(self, name: str) -> None:
        """Keep a process from sending and hearing anything, as SIGSTOP does; its clock goes on."""
        self._lives[name].wire.freeze()

    def resume(self, name: str) -> None:
        """Let it go on with what it was about to do."""
        self._lives[name].wire.thaw()

    def stop(self, name: str) -> None:
        """Tell a process to end."""
        runtime = self._lives[name].runtime
        assert runtime is not None
        runtime.stop.set()

    # --- engines

    async def _engines_forever(self) -> None:
        clock = asyncio.get_running_loop().time
        assert self._engines is not None
        while True:
            self._beats += 1
            for host, driver in self.drivers.items():
                for life in driver.lives if not self._lives[host].wire.is_cut else ():
                    born_s = self._born.setdefault(id(life), clock())
                    if life.has_ended or clock() - born_s < LOAD_S:
                        continue
                    beat = EngineHeartbeat(
                        engine=EngineId(f"e-{host}-{life.pid}"),
                        service=life.order.service,
                        beat=self._beats,
                        state=EngineState.READY if life.drained_s is None else EngineState.DRAINING,
                        backend="fake",
                        name=life.order.name,
                    )
                    self._engines.publish(beat)
            for service in {life.order.service for _, life in self.living()}:
                count = len(self.of(service))
                self.most_of[service] = max(self.most_of.get(service, 0), count)
            await asyncio.sleep(BEAT_S)

    def living(self) -> list[tuple[HostId, Any]]:
        """Everything that runs, with its host."""
        return [
            (host, life)
            for host, driver in self.drivers.items()
            for life in driver.lives
            if not life.has_ended
        ]

    def of(self, service: str) -> list[str]:
        """Names of a service's replicas that run."""
        return sorted(life.order.name for _, life in self.living() if life.order.service == service)

    # --- records

    async def apply(self, spec: LLMService) -> None:
        """Write a service's record."""
        assert self.records is not None
        before = await self.records.get(ServiceRecord, spec.name)
        record = ServiceRecord(
            service=spec.name,
            spec=to_document(spec),
            generation=before.record.generation + 1 if before else 1,
            revision=revision(spec),
        )
        await self.records.put(record, expected=before.revision if before else 0)

    async def delete(self, service: str) -> None:
        """Mark a service as deleted."""
        assert self.records is not None
        before = await self.records.get(ServiceRecord, service)
        assert before is not None
        gone = msgspec.structs.replace(before.record, deleted=True)
        await self.records.put(gone, expected=before.revision)

    async def want(self, service: str, replicas: int) -> None:
        """Write how many replicas a service shall have."""
        assert self.records is not None
        await self.records.put(
            DesiredRecord(service=ServiceName(service), replicas=replicas, by="console")
        )

    async def spoil(self, service: str) -> None:
        """Put something into a service's record that is none."""
        assert self._engines is not None
        subject = ROUTES[ServiceRecord].subject.replace("{service}", service)
        self._engines.wire.send(subject, b"{")
        await self._engines.flush(timeout_s=5)

    async def status(self, service: str) -> StatusRecord | None:
        """What was last written of a service."""
        assert self.records is not None
        entry = await self.records.get(StatusRecord, service)
        return None if entry is None else entry.record

    async def settled(
        self, service: str, replicas: int, *, within_s: float = 120.0
    ) -> StatusRecord:
        """Return when a service is as its record says, with so many replicas."""
        assert self.records is not None
        async with asyncio.timeout(within_s):
            while True:
                record = await self.records.get(ServiceRecord, service)
                found = await self.status(service)
                if (
                    found is not None
                    and record is not None
                    and found.generation == record.record.generation
                    and found.is_settled
                    and len(found.replicas) == replicas == len(self.of(service))
                ):
                    return found
                await asyncio.sleep(0.25)

    async def gone(self, service: str, *, within_s: float = 120.0) -> None:
        """Return when nothing is left of a service, nor of its records."""
        assert self.records is not None
        async with asyncio.timeout(within_s):
            while await self.records.get(ServiceRecord, service) or self.of(service):  # noqa: ASYNC110
                await asyncio.sleep(0.25)
        for kind in (DesiredRecord, StatusRecord):
            assert await self.records.get(kind, service) is None
