"""Real engines forked from a zygote that has imported real vLLM: they answer, and no part outlives the part that it belongs to."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.nursery import Nursery, ended, gone, is_running, with_zygote

ARGV = [sys.executable, "-m", "tests.support.fast_start_payload"]
PRELOAD_S = 240.0
"""A quiet machine needs ten seconds."""
START_S = 240.0
"""A quiet machine needs four."""
MIN_TURNS = 10
"""Of the loop, 20 ms apart, while the core starts; blocked for its whole start there would be one or two."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, not used

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]


async def core_of(nursery: Nursery) -> int:
    """Process id of an engine's core, once the engine has answered."""
    assert await nursery.said("answer", deadline_s=START_S) == "The capital of France is Paris."
    return int(await nursery.said("core"))


def test_no_part_of_an_engine_from_a_zygote_outlives_what_it_belongs_to(tmp_path, smollm2):
    """One zygote and three engines in one test, since the imports take most of the time."""
    in_shared_memory = set(SHARED_MEMORY.iterdir())
    # Not in `tmp_path`: the path of a socket may have 107 bytes.
    temporary = Path(tempfile.mkdtemp(prefix="t"))

    async def scenario(nursery: Nursery) -> None:
        ready = await nursery.client.ready(1.0)
        assert ready.threads == 1, "a fork copies locks, but not those who hold them"

        broken = Nursery(nursery.client, tmp_path, "broken")
        front = await broken.spawn(str(tmp_path / "none"))
        assert await ended(front, deadline_s=START_S) == 1
        assert f"vLLM cannot load {tmp_path / 'none'}" in await broken.said("failed")

        first, second = (Nursery(nursery.client, tmp_path, name) for name in ("first", "second"))
        first_front = await first.spawn(str(smollm2))
        second_front = await second.spawn(str(smollm2))
        first_core, second_core = await core_of(first), await core_of(second)
        turns = int(await first.said("turns"))
        assert turns > MIN_TURNS, "the loop stood still while the core started"

        os.kill(first_core, signal.SIGKILL)
        assert await first.said("dead") == "EngineDeadError"
        assert await ended(first_front) == 0

        assert is_running(second_core)
        second_front.signal(signal.SIGKILL)
        assert await ended(second_front) == -signal.SIGKILL
        await gone(second_core)

    with_zygote(tmp_path, ARGV, scenario, deadline_s=PRELOAD_S, TMPDIR=str(temporary))

    assert set(SHARED_MEMORY.iterdir()) == in_shared_memory
    left = [path.name for path in temporary.iterdir()]
    assert [name for name in left if not name.startswith("torchinductor_")] == []
    shutil.rmtree(temporary)
