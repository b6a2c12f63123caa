"""An engine's accounts in virtual time: what it says is what the clock says, whatever happens to the streams."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from services.engine.adapters.fake import FakeEngine
from services.engine.settings import FakeSettings
from shared.ids import EngineId
from shared.messages import ENGINE_STAGES, Spent
from shared.vloop import run_virtual
from tests.support.engine_rig import Pieces, job_of

STEP_S = 0.01
PREFILL_TOKENS_PER_S = 1000.0
CALM = FakeSettings(
    step_s=STEP_S, prefill_tokens_per_s=PREFILL_TOKENS_PER_S, chunk_tokens=100, total_blocks=4096
)
TIGHT = FakeSettings(
    step_s=STEP_S,
    stream_step_s=0.001,
    prefill_tokens_per_s=PREFILL_TOKENS_PER_S,
    chunk_tokens=64,
    total_blocks=40,
    max_streams=12,
    render_s=0.003,
    overcommit=True,
)


def stages(spent: Spent) -> dict[str, float]:
    """Return the stages that are not nothing, in seconds."""
    return {stage.value: us / 1e6 for stage, us in zip(ENGINE_STAGES, spent.us, strict=True) if us}


class World:
    """An engine and what its jobs said."""

    def __init__(self, settings: FakeSettings) -> None:
        self.engine = FakeEngine(settings)
        self.pieces = Pieces()

    async def answer(self, prompt_tokens: int, **sampling) -> tuple[Spent, float]:
        """Return what a job says of its time, and the time it took."""
        job = job_of("x" * 4 * prompt_tokens, ignore_eos=True, **sampling)
        began = asyncio.get_running_loop().time()
        await self.engine.submit(job)
        pieces = await self.pieces.whole(job.key)
        return pieces[-1].extra.spent, asyncio.get_running_loop().time() - began


def test_a_stream_behind_anothers_long_prompt_waits_and_says_for_whom():
    async def scenario():
        world = World(CALM)
        await world.engine.start(world.pieces)
        loop = asyncio.get_running_loop()
        streaming = loop.create_task(world.answer(10, max_tokens=100))
        await asyncio.sleep(0.5)
        blocker, _ = await world.answer(1000, max_tokens=10)
        spent, wall_s = await streaming

        assert wall_s == pytest.approx(sum(spent.us) / 1e6, abs=2e-6)
        took = stages(spent)
        assert took["decode_wait"] == pytest.approx(1.0, abs=1e-3)
        assert took["decode"] == pytest.approx(0.99, abs=1e-3)
        assert [1_000_000] == [pytest.approx(each.us, abs=10) for each in spent.blocked_by]
        assert stages(blocker)["prefill"] == pytest.approx(1.1, abs=1e-3)
        detail = world.engine.book.detail(EngineId("e"), spent.blocked_by[0].request)
        assert 10 + 9 == detail.last_step - detail.first_step + 1

    run_virtual(scenario())


@pytest.mark.parametrize("seed", range(6))
def test_stages_sum_to_the_time_under_preemption_chunks_choices_and_cancels(seed):
    random = Random(seed)

    async def one(world: World) -> tuple[Spent, float] | None:
        await asyncio.sleep(random.uniform(0, 3))
        prompt, choices = random.randint(1, 200), random.choice((1, 1, 2, 3))
        tokens = random.randint(1, 30)
        if random.random() < 0.3:
            await given_up(world, prompt, random.uniform(0, 1))
            return None
        return await world.answer(prompt, n=choices, max_tokens=tokens)

    async def scenario():
        world = World(TIGHT)
        await world.engine.start(world.pieces)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(world)) for _ in range(60)]
        told = [each for task in tasks if (each := task.result()) is not None]

        for spent, wall_s in told:
            assert wall_s == pytest.approx(sum(spent.us) / 1e6, abs=2e-6)
            assert spent.us[ENGINE_STAGES.index("tokenize")] == 3000
            if not spent.preemptions:
                assert 0 == spent.recomputed_tokens
        assert sum(spent.preemptions for spent, _ in told) > 0
        assert sum(spent.recomputed_tokens for spent, _ in told) > 0
        assert 0 == world.engine.load().running
        assert TIGHT.total_blocks == world.engine.load().free_blocks
        _, steps, _ = world.engine.book.news(0.0)
        assert steps.preemptions >= sum(spent.preemptions for spent, _ in told)

    run_virtual(scenario())


async def given_up(world: World, prompt_tokens: int, after_s: float) -> None:
    """Submit a job, and cancel it; until then its account holds."""
    job = job_of("x" * 4 * prompt_tokens, max_tokens=200, ignore_eos=True)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await world.engine.submit(job)
    await asyncio.sleep(after_s)
    spent = world.engine.spent(job.key)
    if spent is not None:
        assert loop.time() - began == pytest.approx(sum(spent.us) / 1e6, abs=2e-6)
    world.engine.cancel(job.key)
