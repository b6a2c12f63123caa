"""Buses for tests: the same scenario runs on the memory bus in virtual time and on the NATS bus with a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import uvloop

from shared.membus import MemoryBus, MemoryHub
from shared.natsbus import NatsBus
from shared.settings import NatsSettings
from shared.typedbus import TypedBus
from shared.vloop import run_virtual

Scenario = Callable[["World"], Awaitable[None]]


class World(Protocol):
    """Where buses meet."""

    async def bus(self, name: str = "engine") -> TypedBus:
        """Return a new bus that sees the others of this world; it is closed with the scenario."""
        ...

    def run(self, scenario: Scenario) -> None:
        """Run a scenario to its end."""
        ...


class _Base:
    """Opens a group for a scenario and closes its buses."""

    def __init__(self) -> None:
        self.group = asyncio.TaskGroup()
        self.opened: list[TypedBus] = []

    async def _main(self, scenario: Scenario) -> None:
        async with self.group:
            try:
                await scenario(self)  # type: ignore[arg-type] # the two below are whole
            finally:
                for bus in self.opened:
                    await bus.close(drain_s=1.0)


class MemoryWorld(_Base):
    """Memory hub in virtual time."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.hub = MemoryHub(seed=seed)

    async def bus(self, name: str = "engine") -> MemoryBus:
        """See `World.bus`."""
        bus = await MemoryBus.join(self.hub, group=self.group, name=name)
        self.opened.append(bus)
        return bus

    def run(self, scenario: Scenario) -> None:
        """See `World.run`."""
        run_virtual(self._main(scenario))


class NatsWorld(_Base):
    """A real server, shared or not, on the loop that services run on."""

    def __init__(self, url: str, **settings: object) -> None:
        super().__init__()
        self.url = url
        self._settings = NatsSettings(url=url, **settings)  # type: ignore[arg-type]

    async def bus(self, name: str = "engine") -> NatsBus:
        """See `World.bus`."""
        bus = await NatsBus.connect(self._settings, group=self.group, name=name)
        self.opened.append(bus)
        return bus

    def run(self, scenario: Scenario) -> None:
        """See `World.run`."""
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._main(scenario))


async def until(is_so: Callable[[], object], *, timeout_s: float = 5.0) -> None:
    """Return when something holds; fails after `timeout_s` of loop time."""
    async with asyncio.timeout(timeout_s):
        while not is_so():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


def start(settings: NatsSettings, use: Callable[[NatsBus], Awaitable[None]] | None = None) -> None:
    """Connect, use and close, on asyncio's own loop; an error leaves as itself, not as a group."""

    async def scenario() -> None:
        async with asyncio.TaskGroup() as group:
            bus = await NatsBus.connect(settings, group=group, name="test bus")
            try:
                if use is not None:
                    await use(bus)
            finally:
                await bus.close()

    try:
        asyncio.run(scenario())
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


async def in_thread(call: Callable[[], None]) -> None:
    """Do what blocks, such as starting a server, beside the loop."""
    await asyncio.get_running_loop().run_in_executor(None, call)
