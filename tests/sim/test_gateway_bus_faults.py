"""The bus stands still, comes back in parts, or stays away: answers wait and go on where they were, and end honestly in the end."""

from __future__ import annotations

import asyncio

import pytest

from services.engine.metrics import End
from shared.membus import MemoryBus
from tests.support.gateway_world import GatewayWorld, Recorder, call, play

CALLS = 12


def asked(number: int):
    return call(f"p{number}", max_tokens=600, temperature=0.0)


async def begin(world: GatewayWorld, *, engines: int = 2) -> tuple[list[Recorder], list[str]]:
    """Start everything and some answers of 6 s; return them half a second later, and what they are to say."""
    await world.add_gateway()
    for _ in range(engines):
        await world.add_engine(step_s=0.01)
    wanted = await asyncio.gather(*(world.answer(asked(number)) for number in range(CALLS)))
    recorders = [world.start(asked(number))[0] for number in range(CALLS)]
    await asyncio.sleep(0.5)
    return recorders, [one.texts[0] for one in wanted]


async def check(recorders: list[Recorder], texts: list[str]) -> None:
    """Fail unless all answers become whole."""
    async with asyncio.timeout(60):
        for recorder in recorders:
            await recorder.over.wait()
    assert [None] * CALLS == [recorder.error for recorder in recorders]
    assert texts == [recorder.texts[0] for recorder in recorders]


def buses(world: GatewayWorld) -> list[MemoryBus]:
    return [*world.buses, *(engine.bus for engine in world.engines)]


def dropped(world: GatewayWorld) -> int:
    """Return how many streams engines dropped because their gateway was silent."""
    return sum(engine.service.counts.ends[End.GATEWAY_GONE] for engine in world.engines)


@pytest.mark.parametrize("for_s", [1.0, 5.0, 20.0])
def test_a_bus_that_stands_still_costs_its_time_and_nothing_else(for_s):
    async def scenario(world: GatewayWorld) -> None:
        recorders, texts = await begin(world)

        for bus in buses(world):
            bus.freeze()
        await asyncio.sleep(for_s)
        for bus in buses(world):
            bus.thaw()

        await check(recorders, texts)
        assert 0 == dropped(world)
        assert not any(recorder.seams for recorder in recorders)
        await world.assert_nothing_is_left()

    play(scenario)


def test_a_gateway_that_alone_was_deaf_goes_on_soon_with_what_the_engines_dropped():
    async def scenario(world: GatewayWorld) -> None:
        recorders, texts = await begin(world)

        world.buses[0].freeze()
        await asyncio.sleep(3.0)
        world.buses[0].thaw()
        await asyncio.sleep(2.5)
        moved = [recorder.seams for recorder in recorders]

        assert CALLS == dropped(world)
        assert all(moved)
        await check(recorders, texts)
        await world.assert_nothing_is_left()

    play(scenario)


def test_engines_that_come_back_later_than_the_gateway_are_waited_for():
    async def scenario(world: GatewayWorld) -> None:
        recorders, texts = await begin(world)

        for bus in buses(world):
            bus.cut()
        await asyncio.sleep(1.5)
        world.buses[0].heal()
        await asyncio.sleep(2.2)
        for engine in world.engines:
            engine.bus.heal()

        await check(recorders, texts)
        assert not any(recorder.seams for recorder in recorders)
        await world.assert_nothing_is_left()

    play(scenario)


def test_a_new_call_waits_for_engines_that_are_away_for_a_moment():
    async def scenario(world: GatewayWorld) -> None:
        await begin(world)
        for engine in world.engines:
            engine.bus.cut()
        recorder, _ = world.start(asked(0))
        await asyncio.sleep(1.5)
        for engine in world.engines:
            engine.bus.heal()

        await recorder.over.wait()

        assert recorder.error is None
        assert recorder.finished == {0}
        await world.assert_nothing_is_left()

    play(scenario)


def test_a_new_call_outlasts_a_bus_that_stands_still():
    async def scenario(world: GatewayWorld) -> None:
        await begin(world)
        for bus in buses(world):
            bus.freeze()
        recorder, _ = world.start(asked(0))
        await asyncio.sleep(8.0)
        for bus in buses(world):
            bus.thaw()

        await recorder.over.wait()

        assert recorder.error is None
        await world.assert_nothing_is_left()

    play(scenario)


def test_a_bus_that_stays_away_ends_the_answers_with_an_error():
    async def scenario(world: GatewayWorld) -> None:
        recorders, texts = await begin(world)

        for bus in buses(world):
            bus.freeze()
        async with asyncio.timeout(60):
            for recorder in recorders:
                await recorder.over.wait()

        errors = [recorder.error for recorder in recorders]
        assert [503] * CALLS == [error and error.status for error in errors]
        assert all(
            text.startswith(recorder.texts[0])
            for recorder, text in zip(recorders, texts, strict=True)
        )
        for bus in buses(world):
            bus.thaw()
        await world.assert_nothing_is_left()

    play(scenario)
