"""Real operator processes on a real NATS server, and the console's side: what is declared, and how it is."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from shared.declared import Declared
from shared.messages import OperatorHeartbeat, StatusRecord
from shared.natsbus import NatsBus
from shared.runtime import die_with_parent
from shared.settings import NatsSettings, environment
from tests.support.nats_server import NatsServer

ROOT = Path(__file__).resolve().parents[2]


class OperatorProcess:
    """One life of an operator."""

    def __init__(self, server: NatsServer, log: Path, *options: str) -> None:
        self.log = log
        argv = [sys.executable, "-m", "services.operator", "--nats-url", server.url, *options]
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                argv,
                env=environment() | {"PYTHONPATH": str(ROOT)},
                stdout=out,
                stderr=out,
                preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509 - it only asks the kernel
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it with kill -9."""
        self.process.kill()
        self.process.wait(10)


class Platform:
    """The console's view of the platform on one server."""

    def __init__(self, server: NatsServer, folder: Path, bus: NatsBus, declared: Declared) -> None:
        self.declared = declared
        self.bus = bus
        self.leaders: dict[str, OperatorHeartbeat] = {}
        self._server, self._folder = server, folder
        self._operators: list[OperatorProcess] = []

    def operator(self, *options: str) -> OperatorProcess:
        """Start an operator."""
        found = OperatorProcess(self._server, self._folder / "operator.log", *options)
        self._operators.append(found)
        return found

    def heard(self, beat: OperatorHeartbeat) -> None:
        """Take an operator's heartbeat."""
        self.leaders[beat.operator] = beat

    async def led(self, *, within_s: float = 20.0) -> OperatorHeartbeat:
        """Return when an operator says that it leads."""
        self.leaders.clear()
        async with asyncio.timeout(within_s):
            while True:
                for beat in self.leaders.values():
                    if beat.leads:
                        return beat
                await asyncio.sleep(0.05)

    async def settled(self, name: str, *, replicas: int, timeout_s: float = 30.0) -> StatusRecord:
        """Return when a service is as declared, with so many replicas."""
        async with asyncio.timeout(timeout_s):
            while True:
                status = await self.declared.settled(name, timeout_s=timeout_s)
                assert status is not None
                if status.wanted == replicas:
                    return status
                await asyncio.sleep(0.1)

    def end(self) -> None:
        """Kill what still runs."""
        for one in self._operators:
            one.kill()


@asynccontextmanager
async def platform(server: NatsServer, folder: Path) -> AsyncIterator[Platform]:
    """Yield the console's side of a server on which the test starts operators and hosts."""
    async with asyncio.TaskGroup() as group:
        bus = await NatsBus.connect(NatsSettings(url=server.url), group=group, name="console")
        found = Platform(server, folder, bus, await Declared.open(bus))
        await bus.subscribe(OperatorHeartbeat, found.heard)
        try:
            yield found
        finally:
            found.end()
            await bus.close()
