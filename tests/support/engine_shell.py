"""The engine's shell on a memory bus with one or more pretend gateways, for tests in virtual time. Knows no HTTP."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, ParamSpec

from services.engine.adapters.fake import FakeEngine
from services.engine.ports import InferenceEngine
from services.engine.service import EngineService
from services.engine.settings import EngineSettings, FakeSettings
from shared.bus import Bus
from shared.ids import EngineId, GatewayId, RequestId, ServiceName, StreamNo
from shared.membus import MemoryBus, MemoryHub
from shared.memwire import OUTBOUND_BYTES
from shared.messages import (
    HEARTBEAT_S,
    Accepted,
    Cancel,
    Delta,
    EngineHeartbeat,
    GatewayHeartbeat,
    Refused,
    Resend,
    Resent,
    Sampling,
    Submit,
    TextPrompt,
    TokenBatch,
)
from shared.runtime import Runtime
from shared.vloop import run_virtual

P = ParamSpec("P")

ENGINE = EngineId("e1")
FAST = FakeSettings(step_s=0.01, prefill_tokens_per_s=1e6)


def virtual(scenario: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a coroutine function a test that runs in virtual time."""

    @wraps(scenario)
    def test(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtual(scenario(*args, **kwargs))

    return test


class PretendGateway:
    """Sends what a gateway sends and keeps what it gets."""

    def __init__(self, name: str, bus: Bus, engine: EngineId = ENGINE) -> None:
        self.name = GatewayId(name)
        self.bus = bus
        self.engine = engine
        self.batches: list[TokenBatch] = []
        self.is_beating = True
        self._numbers = itertools.count(1)

    async def listen(self) -> None:
        """Begin to keep tokens."""
        await self.bus.subscribe(TokenBatch, self.batches.append, gateway=self.name)

    async def beat_forever(self) -> None:
        """Send heartbeats while `is_beating`."""
        for beat in itertools.count(1):
            if self.is_beating:
                self.bus.publish(GatewayHeartbeat(gateway=self.name, beat=beat))
            await asyncio.sleep(HEARTBEAT_S)

    def submit(
        self, *, stream: int = 0, text: str = "hello", deadline_s: float = 600.0, **sampling: Any
    ) -> Submit:
        """Return a submit; by default of the next stream number, for 10 tokens."""
        wanted = {"max_tokens": 10, "ignore_eos": True, "seed": 1} | sampling
        return Submit(
            engine=self.engine,
            gateway=self.name,
            stream=StreamNo(stream or next(self._numbers)),
            request=RequestId("chatcmpl-x"),
            service=ServiceName("default"),
            prompt=TextPrompt(text=text),
            sampling=Sampling(**wanted),
            deadline_s=deadline_s,
        )

    async def ask(self, submit: Submit) -> Accepted | Refused:
        """Return the engine's answer."""
        answer = await self.bus.request(submit, timeout_s=30.0)
        assert isinstance(answer, Accepted | Refused)
        return answer

    async def accepted(self, **wanted: Any) -> StreamNo:
        """Submit and return the stream's number; fail if it is refused."""
        answer = await self.ask(self.submit(**wanted))
        assert isinstance(answer, Accepted), answer
        return answer.stream

    def cancel(self, stream: StreamNo) -> None:
        """Give a stream up."""
        self.bus.publish(Cancel(engine=self.engine, gateway=self.name, stream=stream))

    async def resend(self, stream: StreamNo, from_seq: int = 0) -> Resent:
        """Ask for deltas again."""
        question = Resend(engine=self.engine, gateway=self.name, stream=stream, from_seq=from_seq)
        answer = await self.bus.request(question, timeout_s=30.0)
        assert isinstance(answer, Resent)
        return answer

    def deltas(self, stream: StreamNo) -> list[Delta]:
        """Return what came of a stream, as it came."""
        return [d for batch in self.batches for d in batch.deltas if d.stream == stream]

    def text(self, stream: StreamNo) -> str:
        """Return the text that came of a stream."""
        return "".join(delta.text for delta in self.deltas(stream))

    def is_over(self, stream: StreamNo) -> bool:
        """Return whether the stream's last delta came."""
        return any(ends(delta) for delta in self.deltas(stream))


def ends(delta: Delta) -> bool:
    """Return whether nothing of the stream comes after this delta."""
    return delta.extra is not None and (
        delta.extra.usage is not None or delta.extra.error is not None
    )


class Shell:
    """One engine and who talks to it."""

    def __init__(self, hub: MemoryHub, runtime: Runtime, backend: Any, bus: MemoryBus) -> None:
        self.hub = hub
        self.runtime = runtime
        self.backend = backend
        self.bus = bus
        self.gateways: list[PretendGateway] = []
        self.beats: list[EngineHeartbeat] = []
        self.service: EngineService
        self.run: asyncio.Task[Exception | None]

    @property
    def gateway(self) -> PretendGateway:
        """The first gateway."""
        return self.gateways[0]

    @property
    def last_beat(self) -> EngineHeartbeat:
        """The newest heartbeat."""
        return self.beats[-1]


class _Done(Exception):
    """The test's part is over."""


@asynccontextmanager
async def engine_shell(
    *,
    fake: FakeSettings = FAST,
    backend: InferenceEngine | None = None,
    gateways: int = 1,
    wait_ready: bool = True,
    outbound_bytes: int = OUTBOUND_BYTES,
    **settings: Any,
) -> AsyncIterator[Shell]:
    """Run an engine with pretend gateways; stop it at the end without a drain."""
    hub = MemoryHub()
    chosen = EngineSettings(backend="fake", fake=fake, **settings)
    outcome: list[BaseException] = []
    try:
        async with asyncio.TaskGroup() as group:
            bus = await MemoryBus.join(
                hub, group=group, name="engine", outbound_bytes=outbound_bytes
            )
            shell = Shell(hub, Runtime(group), backend or FakeEngine(fake), bus)
            for number in range(gateways):
                theirs = await MemoryBus.join(hub, group=group, name="gateway")
                gateway = PretendGateway(f"g{number}", theirs)
                await gateway.listen()
                group.create_task(gateway.beat_forever())
                shell.gateways.append(gateway)
            await shell.gateway.bus.subscribe(EngineHeartbeat, shell.beats.append)
            shell.service = EngineService(chosen, shell.backend, bus, engine=ENGINE, host="here")
            shell.run = group.create_task(_outcome(shell.service, shell.runtime))
            try:
                while wait_ready and not shell.runtime.health.is_ready:  # noqa: ASYNC110 - virtual time
                    await asyncio.sleep(0.01)
                yield shell
            except BaseException as error:  # noqa: BLE001 - shown as it is, not in a group
                outcome.append(error)
            raise _Done  # noqa: TRY301 - ends the group
    except* _Done:
        pass
    if outcome:
        raise outcome[0]


async def _outcome(service: EngineService, runtime: Runtime) -> Exception | None:
    """Run the service and return how it failed: the test looks at that, and the group must not end before."""
    try:
        await service.run(runtime)
    except Exception as error:  # noqa: BLE001 - see above
        return error
    return None
