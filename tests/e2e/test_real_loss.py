"""Real vLLM is lost under streams, front and core: another engine goes on, and the text is the same to the letter.

Weights and KV are float32 and the prompts go at the same pace in both runs, so that the same batches give the same numbers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.console.blackbox import find
from tests.support.platform import Platform
from tests.support.stream_load import StreamLoad, Tally, disturbed, tally

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

START_S = 300.0
BACK_S = 120.0
PROMPTS = [f"Tell me about the number {number}." for number in range(8)]
TOKENS = 40
CONCURRENCY = 4


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Iterator[Platform]:
    """Two engines on real vLLM."""
    home = tmp_path_factory.mktemp("pair")
    options = ("--engines", "2", "--model", str(smollm2), "--service", "m", "--kv-cache", "512MiB")
    running = Platform(home, *options, "--engine-arg", "vllm-dtype=float32")
    running.start(timeout_s=START_S)
    yield running
    running.kill()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def resident_pages(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1])


def front(platform: Platform) -> int:
    """Return an engine's process: a child of the process that has the imports."""
    zygote = min(
        pid
        for pid in platform.pids()
        if b"services.engine.zygote" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    return min(children(zygote))


def core(platform: Platform) -> int:
    """Return the process in which an engine computes."""
    return max(children(front(platform)), key=resident_pages)


def play(platform: Platform, victim: Callable[[Platform], int], number: signal.Signals) -> Tally:
    """Lose an engine under the load, and wait until there are two again."""

    async def scenario() -> Tally:
        load = StreamLoad(platform.url, model="m", max_tokens=TOKENS, ignore_eos=True)
        expected = await load.expected(PROMPTS)
        pid = victim(platform)

        async def hit() -> None:
            os.kill(pid, number)

        outcomes = await disturbed(
            load, PROMPTS, hit, concurrency=CONCURRENCY, after_texts=TOKENS * 2
        )
        if number is signal.SIGSTOP:
            os.kill(pid, signal.SIGKILL)
        return tally(outcomes, expected)

    seen = asyncio.run(scenario())
    end_s = time.monotonic() + BACK_S
    while platform.ready_engines() < 2:
        assert time.monotonic() < end_s, platform.log_text()
        time.sleep(0.5)
    return seen


@pytest.mark.parametrize(
    ("victim", "number", "cause"),
    [
        pytest.param(
            front, signal.SIGKILL, "signal SIGKILL", id="kill the engine", marks=pytest.mark.long
        ),
        pytest.param(core, signal.SIGKILL, "engine core died", id="kill its core"),
        pytest.param(
            core, signal.SIGSTOP, "engine core died", id="freeze its core", marks=pytest.mark.long
        ),
    ],
)
def test_the_text_is_the_same_to_the_letter(pair, victim, number, cause):
    seen = play(pair, victim, number)
    box = find(pair.folder / "black-boxes", "latest")

    assert (0, 0) == (seen.failed, seen.wrong), seen
    assert seen.continued > 0
    assert cause in box.cause
    assert box.steps[-1].number == box.last_step > TOKENS
    assert 0 < box.free_blocks <= box.total_blocks
    assert len(box.seconds[-1].processes) >= 2
