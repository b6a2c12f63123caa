"""An engine of its own that comes to harm: its core stands still, then is killed."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
import warnings
from contextlib import suppress
from pathlib import Path

import pytest

from services.engine.ports import EngineFailedError
from shared.messages import Finish
from tests.support.engine_rig import EngineRig, is_last, job_of, started
from tests.support.vllm_rig import imported_vllm, settings_of, told

imported_vllm()

from services.engine.adapters.vllm_engine import VllmEngine  # noqa: E402 - after the switches that vLLM reads when it is imported

LONG = {"max_tokens": 400, "ignore_eos": True}
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at only
GONE_S = 10.0
NOTICE_S = 10.0
"""Time to notice a dead core: a second on a quiet machine."""


def core_pid(rig: EngineRig) -> int:
    (process,) = rig.engine._llm.engine_core.resources.engine_manager.processes
    assert process.pid is not None
    return process.pid


async def stand_still(rig: EngineRig) -> None:
    """Stop the core in the middle of an answer: the front goes on, the age of the step grows, then all goes on."""
    job = job_of(**LONG)
    await rig.engine.submit(job)
    await rig.pieces.first(job.key)
    os.kill(core_pid(rig), signal.SIGSTOP)
    await asyncio.sleep(0.3)
    before = rig.engine.load()
    await asyncio.sleep(1.0)
    after = rig.engine.load()
    os.kill(core_pid(rig), signal.SIGCONT)
    async with asyncio.timeout(30):
        while rig.engine.load().step == after.step:  # noqa: ASYNC110 - the port tells no steps
            await asyncio.sleep(0.01)
    rig.engine.cancel(job.key)

    assert before.step == after.step
    assert after.step_age_s - before.step_age_s > 0.9


async def die(rig: EngineRig) -> None:
    """Kill the core in the middle of answers: each ends in an error, and the engine says that it failed."""
    jobs = [job_of(**LONG), job_of(n=3, **LONG)]
    for job in jobs:
        await rig.engine.submit(job)
        await rig.pieces.first(job.key)
    failure = asyncio.get_running_loop().create_task(rig.engine.failed())
    await asyncio.sleep(0)
    began = time.monotonic()
    os.kill(core_pid(rig), signal.SIGKILL)
    async with asyncio.timeout(30):
        reason = await failure

    assert time.monotonic() - began < NOTICE_S
    assert "-9" in reason
    for job, choices in zip(jobs, (1, 3), strict=True):
        pieces = rig.pieces.of[job.key]
        assert [False] * (len(pieces) - 1) + [True] == [is_last(piece) for piece in pieces]
        assert pieces[-1].extra.error.retryable
        assert {piece.choice for piece in pieces if piece.finish is Finish.ERROR} == set(
            range(choices)
        )
    with pytest.raises(EngineFailedError, match="died"):
        await told(rig.engine.submit(job_of()))
    assert rig.engine.load().running == 0


def test_a_core_that_stands_still_is_seen_and_one_that_dies_is_told(smollm2: Path):
    before = set(SHARED_MEMORY.iterdir())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with started(VllmEngine(settings_of(smollm2))) as rig:
            rig.run(stand_still(rig))
            rig.run(die(rig))

    assert set(SHARED_MEMORY.iterdir()) <= before


@pytest.mark.parametrize("after_s", [0.5, 2.5])
def test_a_start_that_is_interrupted_leaves_nothing_once_stopped(smollm2: Path, after_s):
    before, children = set(SHARED_MEMORY.iterdir()), children_now()

    async def scenario():
        engine = VllmEngine(settings_of(smollm2))
        # A quick machine is done by then; that must leave nothing either.
        with suppress(TimeoutError):
            async with asyncio.timeout(after_s):
                await engine.start(lambda *_: None)
        await engine.stop()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asyncio.run(scenario())

    end_s = time.monotonic() + GONE_S
    while left := children_now() - children:
        assert time.monotonic() < end_s, left
        time.sleep(0.05)
    assert set(SHARED_MEMORY.iterdir()) <= before


def children_now() -> set[str]:
    """Return the process ids of this process's children, whichever of its threads began them; not of those that were killed just now."""
    multiprocessing.active_children()
    files = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {pid for file in files for pid in file.read_text().split()}


def test_a_model_that_is_none_fails_the_start(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    engine = VllmEngine(settings_of(tmp_path))

    async def scenario():
        with pytest.raises(EngineFailedError, match=str(tmp_path)):
            await engine.start(lambda *_: None)
        await engine.stop()

    asyncio.run(scenario())
