"""A gateway under a bad bus, dying engines and impatient clients: every call has one right end, and nothing is left behind."""

from __future__ import annotations

import asyncio
import random

import pytest

from shared.membus import Faults, set_faults
from shared.messages import Cancel, Message, Priority, Resend, Submit, TokenBatch
from tests.support.gateway_world import GatewayWorld, Recorder, call, play

CALLS = 60
PROMPTS = 8
SUFFERING: tuple[type[Message], ...] = (TokenBatch, Submit, Resend, Cancel)
HEALTHY = Faults()

Texts = dict[int, str]


async def expected_texts(world: GatewayWorld) -> list[Texts]:
    """Return what a healthy platform answers, by number of the prompt."""
    got = await asyncio.gather(*(world.answer(call(f"p{no}", n=2)) for no in range(PROMPTS)))
    return [one.texts for one in got]


def check(recorder: Recorder, expected: Texts) -> None:
    """Fail unless the answer is whole, or is an honest error after a right beginning."""
    if recorder.error is None:
        assert expected == recorder.texts
        assert {0, 1} == recorder.finished
    else:
        assert recorder.error.status in {429, 503, 504}, recorder.error
        for choice, text in recorder.texts.items():
            assert expected[choice].startswith(text)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "faults",
    [
        Faults(drop_ratio=0.05),
        Faults(duplicate_ratio=0.3),
        Faults(reorder_ratio=0.3, delay_s=0.05),
        Faults(drop_ratio=0.05, duplicate_ratio=0.1, reorder_ratio=0.2, delay_s=0.05),
    ],
    ids=["drop", "duplicate", "reorder", "all"],
)
def test_lost_doubled_and_late_tokens_are_repaired(seed, faults):
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine(step_s=0.01)
        await world.add_engine(step_s=0.01)
        expected = await expected_texts(world)
        set_faults(world.hub, TokenBatch, faults)

        got = await asyncio.gather(
            *(world.answer(call(f"p{no % PROMPTS}", n=2)) for no in range(24))
        )

        for number, recorder in enumerate(got):
            assert recorder.error is None
            check(recorder, expected[number % PROMPTS])
        set_faults(world.hub, TokenBatch, HEALTHY)
        await world.assert_nothing_is_left()

    play(scenario, seed=seed)


class Chaos:
    """Two gateways, engines that come and go, a bus that loses messages, clients that leave."""

    def __init__(self, world: GatewayWorld, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.expected: list[Texts] = []

    async def run(self) -> None:
        """Set up, let everything happen at once, calm down."""
        for _ in range(2):
            await self.world.add_gateway(routing={"hung_after_s": 5.0})
        for _ in range(2):
            await self.add_engine()
        self.expected = await expected_texts(self.world)
        self.suffer(Faults(drop_ratio=0.03, reorder_ratio=0.1, delay_s=0.05))
        async with asyncio.TaskGroup() as group:
            group.create_task(self.make_trouble())
            for number in range(CALLS):
                group.create_task(self.be_client(number))
        self.suffer(HEALTHY)
        await asyncio.sleep(5.0)

    def suffer(self, faults: Faults) -> None:
        """Change how bad the bus is."""
        for kind in SUFFERING:
            set_faults(self.world.hub, kind, faults)

    async def add_engine(self) -> None:
        """Start an engine."""
        await self.world.add_engine(step_s=0.01, max_streams=16)

    async def be_client(self, number: int) -> None:
        """Ask something and check what comes, or leave early."""
        rng = self.rng
        await asyncio.sleep(rng.uniform(0, 8))
        asked = call(
            f"p{number % PROMPTS}",
            n=2,
            stream=rng.random() < 0.5,
            priority=rng.choice(list(Priority)),
            timeout_s=rng.choice([2.0, 60.0, 400.0]),
        )
        gateway = rng.randrange(2)
        recorder, running = self.world.start(asked, tenant=rng.choice("ab"), gateway=gateway)
        if rng.random() < 0.25:
            await asyncio.sleep(rng.uniform(0, 0.3))
            self.world.gateways[gateway].calls.leave(running)
            if not recorder.over.is_set():
                return
        async with asyncio.timeout(900):
            await recorder.over.wait()
        check(recorder, self.expected[number % PROMPTS])

    async def make_trouble(self) -> None:
        """Kill, stall and add engines, and cut gateways off for a while."""
        for _ in range(6):
            await asyncio.sleep(self.rng.uniform(0.5, 2.0))
            match self.rng.randrange(4):
                case 0:
                    self.rng.choice(self.world.engines).kill()
                    await self.add_engine()
                case 1:
                    self.rng.choice(self.world.engines).backend.stall()
                    await self.add_engine()
                case 2:
                    bus = self.rng.choice(self.world.buses)
                    bus.cut()
                    await asyncio.sleep(self.rng.uniform(0.1, 3.0))
                    bus.heal()
                case _:
                    await self.add_engine()


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_each_call_ends_once_and_rightly(seed):
    async def scenario(world: GatewayWorld) -> None:
        await Chaos(world, seed).run()

        await world.assert_nothing_is_left()

    play(scenario, seed=seed)
