"""The shell in virtual time: heartbeats, drain, and the death of a backend."""

from __future__ import annotations

import asyncio

from services.engine.adapters.fake import FakeEngine
from services.engine.ports import EngineFailedError
from services.engine.settings import FakeSettings
from shared.messages import (
    EngineState,
    Finish,
    RefuseReason,
)
from tests.support.engine_shell import FAST, engine_shell, virtual


@virtual
async def test_heartbeats_come_twice_a_second_and_count_up():
    async with engine_shell() as shell:
        await asyncio.sleep(10)
        beats = [beat.beat for beat in shell.beats]

        assert 19 <= len(beats) <= 23
        assert beats == list(range(beats[0], beats[0] + len(beats)))
        assert (8192, 128, 16384) == (
            shell.last_beat.max_model_len,
            shell.last_beat.max_streams,
            shell.last_beat.total_blocks,
        )


@virtual
async def test_a_hung_backend_shows_in_the_age_of_its_step():
    async with engine_shell() as shell:
        await shell.gateway.accepted(max_tokens=1000)
        await asyncio.sleep(2)
        assert shell.last_beat.step_age_s < 0.1
        assert 80 < shell.last_beat.step
        shell.backend.stall()
        await asyncio.sleep(5)

        assert 4 < shell.last_beat.step_age_s < 6


@virtual
async def test_the_pace_is_about_what_comes():
    async with engine_shell(fake=FakeSettings(step_s=0.1)) as shell:
        for _ in range(4):
            await shell.gateway.accepted(max_tokens=5000)
        await asyncio.sleep(40)

        assert 36 < shell.last_beat.tokens_per_s < 44


# --- the end


@virtual
async def test_a_drain_refuses_the_new_and_finishes_the_old():
    async with engine_shell(drain_s=30.0) as shell:
        stream = await shell.gateway.accepted(max_tokens=200)
        await asyncio.sleep(0.5)
        shell.runtime.stop.set()
        await asyncio.sleep(0.1)
        answer = await shell.gateway.ask(shell.gateway.submit())

        assert answer.reason is RefuseReason.DRAINING
        assert EngineState.DRAINING is shell.last_beat.state
        assert await shell.run is None
        assert asyncio.get_running_loop().time() < 3
        await asyncio.sleep(0.1)
        assert len(shell.gateway.deltas(stream)) == 200


@virtual
async def test_what_outlasts_the_drain_is_handed_back():
    async with engine_shell(drain_s=2.0) as shell:
        stream = await shell.gateway.accepted(max_tokens=5000)
        shell.runtime.stop.set()

        assert await shell.run is None
        await asyncio.sleep(0.1)
        last = shell.gateway.deltas(stream)[-1]
        assert last.finish is Finish.ERROR
        assert last.extra.error.retryable
        assert 2 <= asyncio.get_running_loop().time() < 2.3


@virtual
async def test_a_dead_backend_hands_everything_back_and_ends_the_process():
    async with engine_shell() as shell:
        streams = [await shell.gateway.accepted(max_tokens=5000) for _ in range(3)]
        await asyncio.sleep(0.5)
        shell.backend.die("the core crashed")

        failure = await shell.run
        await asyncio.sleep(0.1)

        assert isinstance(failure, EngineFailedError)
        for stream in streams:
            error = shell.gateway.deltas(stream)[-1].extra.error
            assert error.retryable
            assert "the core crashed" in error.message
        assert EngineState.FAILED is shell.last_beat.state
        assert shell.last_beat.reason == "the core crashed"
        assert shell.last_beat.outstanding_tokens == 0


@virtual
async def test_a_backend_that_dies_in_the_drain_is_a_failure():
    async with engine_shell() as shell:
        await shell.gateway.accepted(max_tokens=5000)
        shell.runtime.stop.set()
        await asyncio.sleep(1)
        shell.backend.die("the core crashed")

        assert isinstance(await shell.run, EngineFailedError)


@virtual
async def test_a_death_answers_the_submit_under_way():
    async with engine_shell(fake=FakeSettings(render_s=60.0)) as shell:
        asking = shell.runtime.group.create_task(shell.gateway.ask(shell.gateway.submit()))
        await asyncio.sleep(0.5)
        shell.backend.die("the core crashed")

        answer = await asking

        assert answer.reason is RefuseReason.NOT_READY
        assert isinstance(await shell.run, EngineFailedError)


@virtual
async def test_a_stop_while_loading_ends_at_once():
    async with engine_shell(fake=FakeSettings(start_s=60.0), wait_ready=False) as shell:
        await asyncio.sleep(1)
        shell.runtime.stop.set()

        assert await shell.run is None
        assert asyncio.get_running_loop().time() < 2


class CannotStart(FakeEngine):
    """Has no model."""

    async def start(self, sink):
        raise EngineFailedError("no such folder: set vllm.model")


@virtual
async def test_a_backend_that_cannot_start_says_so_on_the_bus():
    async with engine_shell(backend=CannotStart(FAST), wait_ready=False) as shell:
        failure = await shell.run
        await asyncio.sleep(0.1)

        assert isinstance(failure, EngineFailedError)
        assert EngineState.FAILED is shell.last_beat.state
        assert "vllm.model" in shell.last_beat.reason
