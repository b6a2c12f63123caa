"""A real engine process on a real NATS server, and a pretend gateway that talks to it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

from shared.messages import EngineHeartbeat, EngineState
from shared.natsbus import NatsBus
from shared.settings import NatsSettings
from tests.support.engine_shell import PretendGateway
from tests.support.nats_server import NatsServer

ROOT = Path(__file__).resolve().parents[2]
START_S = 30.0


class EngineProcess:
    """One `python -m services.engine`, and its heartbeats."""

    def __init__(self, server: NatsServer, folder: Path, *options: str) -> None:
        self.service = f"s{uuid4().hex}"
        self.beats: list[EngineHeartbeat] = []
        self._beat = asyncio.Event()
        self._log = folder / "engine.log"
        argv = [sys.executable, "-m", "services.engine", "--service", self.service]
        argv += ["--nats-url", server.url, *options]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(argv, env=_environment(), stdout=log, stderr=log)

    @property
    def log(self) -> str:
        """What it wrote so far."""
        return self._log.read_text()

    def on_beat(self, beat: EngineHeartbeat) -> None:
        """Keep a heartbeat."""
        self.beats.append(beat)
        self._beat.set()

    async def state(self, state: EngineState, *, deadline_s: float = START_S) -> EngineHeartbeat:
        """Return a heartbeat of that state, once one has come."""
        async with asyncio.timeout(deadline_s):
            while not self.beats or self.beats[-1].state is not state:
                if self.process.poll() is not None:
                    raise AssertionError(f"the engine ended:\n{self.log}")
                self._beat.clear()
                await self._beat.wait()
        return self.beats[-1]

    def stop(self) -> None:
        """Ask it to end."""
        self.process.send_signal(signal.SIGTERM)

    async def exit_code(self) -> int:
        """Return how it ended, once it has."""
        async with asyncio.timeout(START_S):
            while (code := self.process.poll()) is None:  # noqa: ASYNC110 - a process, not ours to be told by
                await asyncio.sleep(0.02)
        return code

    def kill(self) -> None:
        """End it at once, if it still runs."""
        self.process.kill()
        self.process.wait(5)


def _environment() -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}  # noqa: TID251 - handed on to a child
    return {**inherited, "PYTHONPATH": str(ROOT)}


@asynccontextmanager
async def engine_process(
    server: NatsServer, folder: Path, *options: str
) -> AsyncIterator[tuple[EngineProcess, PretendGateway]]:
    """Start an engine and a gateway that beats; yield both once the engine is ready; end both."""
    async with asyncio.TaskGroup() as group:
        bus = await NatsBus.connect(NatsSettings(url=server.url), group=group, name="gateway")
        engine = EngineProcess(server, folder, *options)
        beating = None
        try:
            await bus.subscribe(EngineHeartbeat, engine.on_beat, service=engine.service)
            gateway = PretendGateway(f"g{uuid4().hex}", bus)
            gateway.engine = (await engine.state(EngineState.READY)).engine
            await gateway.listen()
            beating = group.create_task(gateway.beat_forever())
            yield engine, gateway
        finally:
            if beating is not None:
                beating.cancel()
            engine.kill()
            await bus.close(drain_s=0.5)
