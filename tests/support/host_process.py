"""A real host process on a real NATS server, and the operator's side of the talk with it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from uuid import uuid4

from shared.ids import ServiceName
from shared.messages import (
    EngineHeartbeat,
    HostAnswer,
    HostHeartbeat,
    ReplicaPhase,
    ReplicaState,
    StartReplica,
    StopReplica,
)
from shared.natsbus import NatsBus
from shared.runtime import die_with_parent
from shared.settings import NatsSettings
from tests.support.nats_server import NatsServer

ROOT = Path(__file__).resolve().parents[2]
START_S = 30.0


class HostProcess:
    """One folder's host, life after life, and what it says."""

    def __init__(self, server: NatsServer, folder: Path, *options: str) -> None:
        self.service = ServiceName(f"s{uuid4().hex[:12]}")
        self.folder = folder
        self.beats: list[HostHeartbeat] = []
        self.engines: list[EngineHeartbeat] = []
        self.epoch = 1
        self._server = server
        self._options = options
        self._log = folder / "host.log"
        self._name = f"host-{uuid4().hex[:8]}"
        self._heard = asyncio.Event()
        self._bus: NatsBus | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The present life."""
        assert self._process is not None
        return self._process

    @property
    def log(self) -> str:
        """What it wrote so far, over all lives."""
        return self._log.read_text()

    def start(self) -> None:
        """Begin a life."""
        self.folder.mkdir(exist_ok=True)
        argv = [sys.executable, "-m", "services.host", "--folder", str(self.folder)]
        argv += ["--models", str(self.folder / "models"), "--name", self._name]
        argv += ["--nats-url", self._server.url, "--warm", "plain", *self._options]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                argv,
                env=_environment(),
                stdout=log,
                stderr=log,
                preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509 - it only asks the kernel
            )

    async def listen(self, bus: NatsBus) -> None:
        """Hear this host and the engines of its service."""
        self._bus = bus
        await bus.subscribe(HostHeartbeat, self._on_host)
        await bus.subscribe(EngineHeartbeat, self._on_engine, service=self.service)

    def _on_host(self, beat: HostHeartbeat) -> None:
        if beat.name == self._name:
            self.beats.append(beat)
            self._heard.set()

    def _on_engine(self, beat: EngineHeartbeat) -> None:
        self.engines.append(beat)
        self._heard.set()

    async def until(self, is_so: Callable[[], bool], *, within_s: float = START_S) -> None:
        """Return when something holds after one of the messages."""
        try:
            async with asyncio.timeout(within_s):
                while not is_so():
                    self._heard.clear()
                    await self._heard.wait()
        except TimeoutError as error:
            raise AssertionError(
                f"not within {within_s} s: {self.beats[-1:]}\n{self.log}"
            ) from error

    async def new_life(self) -> None:
        """Return when a host is heard that was not heard before."""
        known = {beat.host for beat in self.beats}
        await self.until(lambda: bool(self.beats) and self.beats[-1].host not in known)

    def spec(self, **parts: object) -> dict[str, object]:
        """Return the document of a service on the fake engine; `parts` are tables of its spec."""
        body: dict[str, object] = {"modelRef": {"name": "m"}, "engine": {"backend": "fake"}}
        return {
            "apiVersion": "llmplatform.io/v1",
            "kind": "LLMService",
            "metadata": {"name": self.service},
            "spec": {**body, **parts},
        }

    def name_of(self, number: int) -> str:
        """Return the name of a replica."""
        return f"{self.service}-{number}"

    async def order(
        self,
        number: int = 0,
        *,
        spec: dict[str, object] | None = None,
        fingerprint: str = "",
        epoch: int | None = None,
    ) -> HostAnswer:
        """Tell it to start a replica."""
        message = StartReplica(
            host=self.beats[-1].host,
            epoch=self.epoch if epoch is None else epoch,
            name=self.name_of(number),
            service=self.service,
            revision="r1",
            spec=spec or self.spec(),
            fingerprint=fingerprint,
        )
        return await self._ask(message)

    async def stop_replica(
        self, number: int = 0, *, drain_s: float = 20.0, epoch: int | None = None
    ) -> HostAnswer:
        """Tell it to stop a replica."""
        message = StopReplica(
            host=self.beats[-1].host,
            epoch=self.epoch if epoch is None else epoch,
            name=self.name_of(number),
            drain_s=drain_s,
        )
        return await self._ask(message)

    async def _ask(self, message: StartReplica | StopReplica) -> HostAnswer:
        assert self._bus is not None
        answer = await self._bus.request(message, timeout_s=5.0)
        assert isinstance(answer, HostAnswer)
        return answer

    def state(self, number: int = 0) -> ReplicaState | None:
        """Return what it says now of a replica."""
        name = self.name_of(number)
        return next((state for state in self.beats[-1].replicas if state.name == name), None)

    async def phase(
        self, phase: ReplicaPhase | None, number: int = 0, *, within_s: float = START_S
    ) -> ReplicaState:
        """Return a replica's state once it is in this phase; none: once it is not there."""

        def is_there() -> bool:
            state = self.state(number)
            return (state.phase if state is not None else None) is phase

        await self.until(is_there, within_s=within_s)
        state = self.state(number)
        return (
            state
            if state is not None
            else ReplicaState(
                name="", service=self.service, revision="", phase=ReplicaPhase.STOPPING
            )
        )

    async def running(self, number: int = 0, **order: object) -> ReplicaState:
        """Start a replica and return its state once it serves."""
        answer = await self.order(number, **order)  # type: ignore[arg-type] # handed on
        assert answer.accepted, answer
        return await self.phase(ReplicaPhase.RUNNING, number)

    def kill(self) -> None:
        """End it at once, if it still runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(5)

    async def stop(self, *, within_s: float = START_S) -> int:
        """Ask it to end and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(within_s):
            while (code := self.process.poll()) is None:  # noqa: ASYNC110 - a process, not ours to be told by
                await asyncio.sleep(0.02)
        return code


def _environment() -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}  # noqa: TID251 - handed on to a child
    return {**inherited, "PYTHONPATH": str(ROOT)}


@asynccontextmanager
async def host_process(
    server: NatsServer, folder: Path, *options: str
) -> AsyncIterator[HostProcess]:
    """Start a host; yield it once it beats; end it."""
    async with asyncio.TaskGroup() as group:
        bus = await NatsBus.connect(NatsSettings(url=server.url), group=group, name="operator")
        host = HostProcess(server, folder, *options)
        try:
            await host.listen(bus)
            host.start()
            await host.new_life()
            yield host
        finally:
            host.kill()
            await bus.close(drain_s=0.5)
