"""200 streams at concurrency 16 on two engines; one is lost in every way there is: each stream ends whole and right."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.support.platform import Platform
from tests.support.stream_load import StreamLoad, Tally, disturbed, tally

START_S = 90.0
PROMPTS = [f"question {number % 10}" for number in range(200)]
TOKENS = 60
CONCURRENCY = 16


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    running = Platform(tmp_path / "home", "--fake-engine", "--engines", "2", "--gateways", "2")
    running.start(timeout_s=START_S)
    yield running
    running.kill()


def pids_of(platform: Platform, module: str) -> list[int]:
    """Return the processes of a service, oldest first."""
    return sorted(
        pid
        for pid in platform.pids()
        if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    )


def play(platform: Platform, disturb: Callable[[], Awaitable[None]], **fields: object) -> Tally:
    """Run the load with the disturbance in it; return what became of it."""

    async def scenario() -> Tally:
        load = StreamLoad(platform.url, model="fake", max_tokens=TOKENS, ignore_eos=True, **fields)
        expected = await load.expected(PROMPTS)
        outcomes = await disturbed(
            load, PROMPTS, disturb, concurrency=CONCURRENCY, after_texts=len(PROMPTS) * TOKENS // 4
        )
        return tally(outcomes, expected)

    seen = asyncio.run(scenario())
    platform.wait_idle(within_s=20)
    return seen


def test_a_killed_engine(platform):
    async def kill() -> None:
        os.kill(min(platform.engine_pids()), signal.SIGKILL)

    seen = play(platform, kill)

    assert (0, 0) == (seen.failed, seen.wrong), seen
    assert seen.continued > 0


def test_a_frozen_engine_that_wakes_up_later(platform):
    async def freeze() -> None:
        pid = min(platform.engine_pids())
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(4.0)
        os.kill(pid, signal.SIGCONT)

    seen = play(platform, freeze)

    assert (0, 0) == (seen.failed, seen.wrong), seen
    assert seen.continued > 0
    # Noticed within 2 s, gone on with at once; the rest is for a busy machine.
    assert seen.longest_gap_s < 6.0


def test_an_engine_that_is_told_to_stop(platform):
    async def stop() -> None:
        os.kill(min(platform.engine_pids()), signal.SIGTERM)

    seen = play(platform, stop)

    assert (0, 0) == (seen.failed, seen.wrong), seen


def test_one_gateway_of_two_is_killed(platform):
    async def kill() -> None:
        os.kill(pids_of(platform, "services.gateway")[0], signal.SIGKILL)

    seen = play(platform, kill)

    # Its own streams break off, as a client sees at once; nobody else's do.
    assert seen.wrong == 0, seen
    assert 0 < seen.failed <= CONCURRENCY
