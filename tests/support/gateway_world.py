"""A whole gateway and real engine services (fake backend) on the memory bus, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import msgspec
import uvloop

from services.engine.adapters.fake import FakeEngine
from services.engine.service import EngineService
from services.engine.settings import EngineSettings, FakeSettings
from services.gateway.call import ApiError, Call
from services.gateway.doors import HttpDoor
from services.gateway.ledger.timing import Timing
from services.gateway.reception import DoorNames
from services.gateway.running import RunningCall
from services.gateway.service import Door, GatewayService
from services.gateway.settings import GatewaySettings
from services.gateway.wiring import http_door, nats_door
from shared.boot import boot_id
from shared.health import HealthState
from shared.ids import RequestId, ServiceName, TenantId, new_engine_id, new_gateway_id
from shared.keys import KeyFile
from shared.membus import MemoryBus, MemoryHub
from shared.messages import Delta, Ledger, LedgerBatch, Sampling, TextPrompt, Usage
from shared.runtime import Runtime
from shared.vloop import run_virtual

SERVICE = ServiceName("m")
DOOR = DoorNames("test", "x-request-id", "x-headrace-timing")
Scenario = Callable[["GatewayWorld"], Awaitable[None]]


class Recorder:
    """An outlet that keeps what it is given, and checks the order of calls."""

    def __init__(self, *, is_streamed: bool = True) -> None:
        self.is_streamed = is_streamed
        self.request: RequestId | None = None
        self.deltas: list[tuple[int, Delta]] = []
        self.seams: list[tuple[int, bool]] = []
        """First choice and exactness, for each time that another engine went on."""
        self.usage: Usage | None = None
        self.error: ApiError | None = None
        self.timing: Timing | None = None
        self.over = asyncio.Event()
        self.begun = asyncio.Event()
        self.first = asyncio.Event()

    def too_large(self, chars: int) -> ApiError | None:
        return None

    def begin(self, request: RequestId) -> None:
        assert self.request is None
        assert not self.over.is_set()
        self.request = request
        self.begun.set()

    def delta(self, delta: Delta, choice: int) -> None:
        assert self.request is not None
        assert not self.over.is_set()
        self.deltas.append((choice, delta))
        self.first.set()

    def continued(self, choice: int, *, is_exact: bool) -> None:
        assert not self.over.is_set()
        self.seams.append((choice, is_exact))

    def finish(self, usage: Usage, timing: Timing | None) -> ApiError | None:
        assert self.request is not None
        assert not self.over.is_set()
        self.usage = usage
        self.timing = timing
        self.over.set()
        return None

    def fail(self, error: ApiError, timing: Timing | None) -> None:
        assert not self.over.is_set()
        self.error = error
        self.timing = timing
        self.over.set()

    def when_sent(self, then: Callable[[], None]) -> None:
        assert self.over.is_set()
        then()

    @property
    def texts(self) -> dict[int, str]:
        """Text by choice."""
        texts: dict[int, str] = defaultdict(str)
        for choice, delta in self.deltas:
            texts[choice] += delta.text
        return dict(texts)

    @property
    def finished(self) -> set[int]:
        """Choices that have a finish reason."""
        return {choice for choice, delta in self.deltas if delta.finish is not None}


class EngineHandle:
    """A running engine service."""

    def __init__(
        self, service: EngineService, backend: FakeEngine, bus: MemoryBus, runtime: Runtime
    ) -> None:
        self.service = service
        self.backend = backend
        self.is_killed = False
        self.bus = bus
        self.runtime = runtime
        self.task: asyncio.Task[None] | None = None

    @property
    def live(self) -> int:
        """Streams that the engine answers now."""
        return len(self.service._streams.live)

    def kill(self) -> None:
        """Vanish as by `kill -9`: nothing more is sent or heard."""
        self.bus.cut()
        self.is_killed = True

    def bury(self) -> None:
        """End what a killed engine still does in here."""
        assert self.task is not None
        self.task.cancel()

    def drain(self) -> None:
        """Do what the first signal does."""
        self.runtime.health.move(HealthState.DRAINING)
        self.runtime.stop.set()


class GatewayWorld:
    """One hub, gateways and engines on it."""

    def __init__(self, group: asyncio.TaskGroup, *, seed: int) -> None:
        self.hub = MemoryHub(seed=seed)
        self.group = group
        self.loop = asyncio.get_running_loop()
        self.engines: list[EngineHandle] = []
        self.gateways: list[GatewayService] = []
        self.buses: list[MemoryBus] = []
        """The bus of each gateway, for tokens and engines."""
        self.http: list[HttpDoor] = []
        self.ledgers: dict[ServiceName, list[Ledger]] = defaultdict(list)
        """What all gateways have told of ended requests."""
        self.asked = 0
        """Requests that came in, whatever became of them."""
        self._runtimes: list[Runtime] = []

    @property
    def gateway(self) -> GatewayService:
        """The first gateway."""
        return self.gateways[0]

    async def add_gateway(
        self,
        *,
        keys: KeyFile | None = None,
        with_http: bool = False,
        also: Sequence[Door] = (),
        **fields,
    ) -> GatewayService:
        """Start a gateway with its NATS door, and its HTTP door where the loop is a real one."""
        runtime = Runtime(self.group)
        gateway = new_gateway_id()
        bus = await MemoryBus.join(self.hub, group=self.group, name="gateway")
        callers = await MemoryBus.join(self.hub, group=self.group, name="gateway-callers")
        settings = msgspec.convert(fields, GatewaySettings)
        service = GatewayService(
            settings, bus, runtime, gateway=gateway, boot=boot_id(), keys=keys or KeyFile(None)
        )
        doors: list[Door] = [nats_door(callers.wire, service, gateway=gateway), *also]
        if with_http:
            door = http_door(settings, service)
            doors.append(door)
            self.http.append(door)
        self.group.create_task(service.run(doors))
        self.gateways.append(service)
        self.buses.append(bus)
        self._runtimes.append(runtime)
        return service

    def drain_gateway(self, index: int = 0) -> None:
        """Do what the first signal does."""
        self._runtimes[index].health.move(HealthState.DRAINING)
        self._runtimes[index].stop.set()

    async def add_engine(
        self,
        *,
        max_waiting: int = 512,
        make: Callable[[FakeSettings], FakeEngine] = FakeEngine,
        boot: str | None = None,
        **fake,
    ) -> EngineHandle:
        """Start an engine and wait until all gateways see it ready; `boot`: of another host's kernel."""
        settings = EngineSettings(
            service=SERVICE,
            backend="fake",
            max_waiting=max_waiting,
            fake=msgspec.convert(fake, FakeSettings),
        )
        ready = [gateway.lookout.ready() for gateway in self.gateways]
        started: asyncio.Future[EngineHandle] = self.loop.create_future()
        task = self.group.create_task(self._live(settings, make, boot, started))
        handle = await started
        handle.task = task
        self.engines.append(handle)
        await self.until(
            lambda: all(
                gateway.lookout.ready() > before
                for gateway, before in zip(self.gateways, ready, strict=True)
            )
        )
        return handle

    async def _live(
        self,
        settings: EngineSettings,
        make: Callable[[FakeSettings], FakeEngine],
        boot: str | None,
        started: asyncio.Future[EngineHandle],
    ) -> None:
        """Be an engine's process: what runs in it ends with it."""
        with _ended():
            async with asyncio.TaskGroup() as group:
                runtime = Runtime(group)
                bus = await MemoryBus.join(self.hub, group=group, name="engine")
                backend = make(settings.fake)
                service = EngineService(settings, backend, bus, engine=new_engine_id(), host="sim")
                if boot is not None:
                    service._boot = boot
                started.set_result(EngineHandle(service, backend, bus, runtime))
                try:
                    await service.run(runtime)
                finally:
                    await bus.wire.close()
                raise _Over

    def start(
        self,
        call: Call,
        *,
        outlet: Recorder | None = None,
        tenant: str = "t",
        prefix_salt: str = "",
        gateway: int = 0,
        headers: dict[str, str] | None = None,
    ) -> tuple[Recorder, RunningCall]:
        """Begin a call as a door would."""
        recorder = outlet or Recorder(is_streamed=call.stream)
        service = self.gateways[gateway]
        caller = service.reception.caller(
            DOOR, call.kind, (headers or {}).get, received_at=self.loop.time()
        )
        caller.tenant = TenantId(tenant)
        caller.prefix_salt = prefix_salt
        self.asked += 1
        return recorder, service.calls.start(call, caller, recorder)

    async def answer(self, call: Call, **options) -> Recorder:
        """Run a call to its end."""
        recorder, _ = self.start(call, **options)
        async with asyncio.timeout(3600):
            await recorder.over.wait()
        return recorder

    async def until(self, is_so: Callable[[], object], *, timeout_s: float = 60.0) -> None:
        """Return when something holds; fails after `timeout_s` of virtual time."""
        async with asyncio.timeout(timeout_s):
            while not is_so():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.01)

    async def assert_nothing_is_left(self) -> None:
        """Fail unless every counter is back to zero, here and at the engines, which wait for a deadline where a cancel was lost."""
        await self.until(
            lambda: all(not engine.live for engine in self.engines if not engine.is_killed),
            timeout_s=900.0,
        )
        await self.until(lambda: self.asked == sum(one.ledgers.made for one in self.gateways))
        self.assert_entries_add_up()
        for gateway in self.gateways:
            assert 0 == len(gateway.calls), gateway
            assert 0 == len(gateway.table), gateway.table
            assert (0, 0) == (gateway.gates.in_flight, gateway.gates.waiting)
            assert 0 == gateway.held_choices
            assert not gateway.calls._silent
            assert not gateway._placement._at
            assert not gateway._placement._by_stream

    def take_ledgers(self, batch: LedgerBatch) -> None:
        """Keep what a gateway tells."""
        self.ledgers[batch.service] += batch.ledgers

    def assert_entries_add_up(self) -> None:
        """Fail unless each request that came in has left one entry, and the stages of all entries add up."""
        books = [gateway.ledgers for gateway in self.gateways]
        assert self.asked == sum(book.opened for book in books) == sum(book.made for book in books)
        entries = [entry for told in self.ledgers.values() for entry in told]
        assert len({entry.request for entry in entries}) == len(entries)
        for entry in entries:
            assert entry.wall_us == sum(entry.us), entry
            assert min(entry.us) >= 0, entry


def call(text: str = "hello", *, prompts: int = 1, **fields) -> Call:
    """Return a call; what is not named is the usual."""
    sampling: dict[str, Any] = {"n": 1, "max_tokens": 16, "ignore_eos": True, "seed": 7}
    for name in list(fields):
        if name in Sampling.__struct_fields__:
            sampling[name] = fields.pop(name)
    defaults: dict[str, Any] = {
        "kind": "completion",
        "model": SERVICE,
        "stream": True,
        "work_tokens": 100,
    }
    return Call(
        prompts=tuple(TextPrompt(text=f"{text} {index}") for index in range(prompts)),
        sampling=Sampling(**sampling),
        **(defaults | fields),
    )


def play(scenario: Scenario, *, seed: int = 0) -> None:
    """Run a scenario in virtual time, then end everything; a fault of any task fails it."""
    run_virtual(_play(scenario, seed))


def play_live(scenario: Scenario) -> None:
    """Run a scenario in real time, with real sockets."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_play(scenario, 0))


async def _play(scenario: Scenario, seed: int) -> None:
    with _ended():
        async with asyncio.TaskGroup() as group:
            world = GatewayWorld(group, seed=seed)
            reader = await MemoryBus.join(world.hub, group=group, name="reader")
            await reader.subscribe(LedgerBatch, world.take_ledgers)
            try:
                await scenario(world)
            finally:
                for door in world.http:
                    await door.stop()
            raise _Over


class _Over(Exception):
    """The scenario has been played."""


@contextlib.contextmanager
def _ended() -> Iterator[None]:
    try:
        yield
    except* _Over:
        pass
