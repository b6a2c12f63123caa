"""The bus of a running platform, for the time of one command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from services.console.fleet.instance import BusAddress
from shared.errors import HeadraceError
from shared.natsbus import NatsBus
from shared.settings import NatsSettings, Secret

T = TypeVar("T")

CONNECT_S = 3.0


async def on_bus(address: BusAddress, use: Callable[[NatsBus], Awaitable[T]], *, name: str) -> T:
    """Connect as the console, do something, and close. Raises `UserError` where no bus answers, and whatever `use` raises."""
    settings = NatsSettings(
        url=address.url,
        user="console",
        password=Secret(address.password),
        connect_timeout_s=CONNECT_S,
    )
    try:
        async with asyncio.TaskGroup() as group:
            bus = await NatsBus.connect(settings, group=group, name=name)
            try:
                return await use(bus)
            finally:
                await bus.close()
    except BaseExceptionGroup as failed:
        raise _ours(failed) from failed


def _ours(failed: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error of ours in a group, which says what to change; the group where there is another one."""
    _, others = failed.split(HeadraceError)
    first: BaseException = failed
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return failed if others else first
