"""What every bus promises about flushing and closing, on the memory bus and on a real NATS server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from shared.errors import (
    BusClosed,
    RequestTimeout,
)
from shared.messages import (
    Cancel,
    Resend,
    Resent,
)
from tests.support.buses import World, until
from tests.support.samples import E1, answer, cancel, resend


def test_flush_returns_when_the_server_has_all(world: World):
    async def scenario(world: World) -> None:
        sender, receiver = await world.bus(), await world.bus()
        got: list[int] = []
        await receiver.subscribe(Cancel, lambda m: got.append(m.stream), engine=E1)

        for number in range(1_000):
            sender.publish(cancel(number))
        await sender.flush(timeout_s=5)
        await sender.close()
        await until(lambda: len(got) == 1_000)

    world.run(scenario)


def test_close_delivers_what_was_published_and_what_has_arrived(world: World):
    async def scenario(world: World) -> None:
        sender, receiver = await world.bus(), await world.bus()
        got: list[int] = []
        await receiver.subscribe(Cancel, lambda m: got.append(m.stream), engine=E1)

        for number in range(1_000):
            sender.publish(cancel(number))
        await sender.close()
        await receiver.close()

        assert list(range(1_000)) == got

    world.run(scenario)


def test_close_lets_served_calls_finish(world: World):
    async def scenario(world: World) -> None:
        client, server = await world.bus(), await world.bus()
        begun = asyncio.Event()

        async def slow(message: Resend) -> Resent:
            begun.set()
            await asyncio.sleep(0.1)
            return await answer(message)

        await server.serve(Resend, slow, engine=E1)
        async with asyncio.TaskGroup() as group:
            call = group.create_task(client.request(resend(), timeout_s=5))
            await begun.wait()
            await server.close(drain_s=2)

        assert call.result()

    world.run(scenario)


def test_close_cancels_served_calls_beyond_the_deadline(world: World):
    async def scenario(world: World) -> None:
        client, server = await world.bus(), await world.bus()
        cancelled = asyncio.Event()
        begun = asyncio.Event()

        async def hang(message: Resend) -> Resent:
            begun.set()
            try:
                await asyncio.sleep(3600)
            finally:
                cancelled.set()
            return await answer(message)

        await server.serve(Resend, hang, engine=E1)
        async with asyncio.TaskGroup() as group:
            call = group.create_task(swallow(client.request(resend(), timeout_s=1)))
            await begun.wait()
            await server.close(drain_s=0.05)
            await cancelled.wait()
            await call

    world.run(scenario)


async def swallow(call: asyncio.Future[object] | object) -> None:
    with pytest.raises(RequestTimeout):
        await call  # type: ignore[misc]


USES: dict[str, Callable[[object], object]] = {
    "publish": lambda bus: bus.publish(cancel(1)),  # type: ignore[attr-defined]
    "request": lambda bus: bus.request(resend(), timeout_s=1),  # type: ignore[attr-defined]
    "subscribe": lambda bus: bus.subscribe(Cancel, print),  # type: ignore[attr-defined]
    "serve": lambda bus: bus.serve(Resend, answer),  # type: ignore[attr-defined]
    "flush": lambda bus: bus.flush(timeout_s=1),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("use", USES)
def test_a_closed_bus_refuses_everything(world: World, use: str):
    async def scenario(world: World) -> None:
        bus = await world.bus()
        await bus.close()
        await bus.close()

        assert not bus.is_connected
        with pytest.raises(BusClosed):
            await apply(USES[use], bus)

    world.run(scenario)


async def apply(use: Callable[[object], object], bus: object) -> None:
    result = use(bus)
    if asyncio.iscoroutine(result):
        await result
