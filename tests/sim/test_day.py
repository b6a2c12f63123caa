"""Hours of a fleet with faults from a seed, in virtual time: each accepted request ends once and rightly, and nothing grows.

Half an hour by default; `pytest tests/sim/test_day.py --sim-hours 24` is the day.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from shared.membus import Faults, set_faults
from shared.messages import Cancel, Priority, Resend, Submit, TokenBatch
from tests.support.gateway_world import EngineHandle, GatewayWorld, Recorder, call, play

HOUR_S = 3600.0
PROMPTS = 6
ENGINES = 3
CALLS_PER_HOUR = 400
FAULTS_PER_HOUR = 30
CALM_S = 10.0


class Day:
    """Two gateways, engines that are lost and replaced, a bus that is bad at times, clients that come and go."""

    def __init__(self, world: GatewayWorld, *, hours: float, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.ends_at = world.loop.time() + hours * HOUR_S
        self.fleet: list[EngineHandle] = []
        self.expected: list[dict[int, str]] = []
        self.ended = {"whole": 0, "error": 0, "left": 0, "continued": 0}
        self.faults = 0
        self.wrong: list[str] = []

    async def run(self) -> None:
        """Set up, live through it, calm down."""
        for _ in range(2):
            await self.world.add_gateway()
        for _ in range(ENGINES):
            await self.add_engine()
        for number in range(PROMPTS):
            self.expected.append((await self.world.answer(self.asked(number))).texts)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.trouble())
            while self.world.loop.time() < self.ends_at:
                await asyncio.sleep(self.rng.expovariate(CALLS_PER_HOUR / HOUR_S))
                group.create_task(self.client())
        self.network(Faults())
        await asyncio.sleep(CALM_S)

    def asked(self, number: int, **fields):
        return call(f"p{number} " * 150, n=2, max_tokens=300, temperature=0.0, **fields)

    async def add_engine(self) -> None:
        self.fleet.append(
            await self.world.add_engine(step_s=0.02, max_streams=16, caches_prefixes=True)
        )

    def network(self, faults: Faults) -> None:
        for kind in (TokenBatch, Submit, Resend, Cancel):
            set_faults(self.world.hub, kind, faults)

    async def client(self) -> None:
        """Ask, and stay to the end or leave early."""
        rng, number = self.rng, self.rng.randrange(PROMPTS)
        gateway = rng.randrange(2)
        recorder, running = self.world.start(
            self.asked(number, stream=rng.random() < 0.7, priority=rng.choice(list(Priority))),
            tenant=rng.choice("abc"),
            gateway=gateway,
        )
        if rng.random() < 0.1:
            await asyncio.sleep(rng.uniform(0, 1))
            self.world.gateways[gateway].calls.leave(running)
            self.ended["left"] += 1
            return
        async with asyncio.timeout(900):
            await recorder.over.wait()
        self.judge(recorder, self.expected[number])

    def judge(self, recorder: Recorder, expected: dict[int, str]) -> None:
        self.ended["error" if recorder.error else "whole"] += 1
        self.ended["continued"] += bool(recorder.seams)
        texts = recorder.texts
        if recorder.error is not None:
            right = all(expected[choice].startswith(text) for choice, text in texts.items())
        else:
            right = texts == expected and recorder.finished == {0, 1}
        if not right:
            self.wrong.append(f"{recorder.error}: {texts} instead of {expected}")

    async def trouble(self) -> None:
        """Something breaks every other minute, and is mended."""
        rng = self.rng
        while self.world.loop.time() < self.ends_at:
            await asyncio.sleep(rng.expovariate(FAULTS_PER_HOUR / HOUR_S))
            self.faults += 1
            match rng.randrange(4):
                case 0:
                    await self.replace(lambda engine: engine.kill())
                case 1:
                    await self.replace(lambda engine: engine.backend.stall())
                case 2:
                    bus = rng.choice(self.world.buses)
                    bus.cut()
                    await asyncio.sleep(rng.uniform(0.1, 5.0))
                    bus.heal()
                case _:
                    self.network(Faults(drop_ratio=0.05, reorder_ratio=0.1, delay_s=0.05))
                    await asyncio.sleep(rng.uniform(1, 30))
                    self.network(Faults())

    async def replace(self, lose) -> None:
        """Lose an engine, and have an operator put another one there."""
        engine = self.fleet.pop(self.rng.randrange(len(self.fleet)))
        lose(engine)
        await self.add_engine()
        await asyncio.sleep(40.0)
        engine.kill()
        engine.bury()


def test_hours_of_faults_leave_nothing_and_lose_nothing(request: pytest.FixtureRequest):
    hours = request.config.getoption("--sim-hours")

    async def scenario(world: GatewayWorld) -> None:
        day = Day(world, hours=hours, seed=int(hours))
        await day.run()
        print(f"{hours:g} h of virtual time: {day.ended}, {day.faults} faults")  # noqa: T201 - what was seen, with -s

        assert [] == day.wrong
        assert day.ended["whole"] > CALLS_PER_HOUR * hours / 2
        assert day.ended["error"] < 0.02 * day.ended["whole"], day.ended
        assert day.ended["continued"] > hours
        await world.assert_nothing_is_left()

    play(scenario)
