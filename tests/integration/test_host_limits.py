"""What holds a replica's processes to their limits, with real processes."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from services.host.adapters import limits
from services.host.adapters.processes import EngineProcess
from shared.processes.child import ExecLauncher
from shared.processes.supervisor import Death
from shared.processes.tree import below
from shared.settings import environment
from tests.support.in_loop import in_loop

MIB = 1 << 20
TIED = "import ctypes; ctypes.CDLL(None).prctl(1, 9)"
"""Ends with its parent."""
SHARER = f"""
import os, time
data = bytearray(os.urandom(1 << 10)) * (100 << 10)
for _ in range(3):
    if os.fork() == 0:
        {TIED}
        sum(data[:: {1 << 12}])
        break
time.sleep(60)
"""
"""Four processes that share 100 MiB."""
EATER = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "{TIED}; import time; held = bytearray({300 * MIB}); time.sleep(60)"])
time.sleep(60)
"""
"""A process whose child takes 300 MiB."""


async def engine(
    tmp_path: Path, program: str, *, limit: int, told: list[Death | None]
) -> EngineProcess:
    log = tmp_path / "p.log"
    launcher = ExecLauncher("p", [sys.executable, "-c", program], env=environment(), log=log)
    return EngineProcess(
        await launcher.start(),
        log=log,
        log_from=0,
        metrics_port=0,
        limit_bytes=limit,
        on_end=told.append,
    )


@in_loop
async def test_a_replica_whose_processes_take_too_much_together_is_ended_with_the_figures(tmp_path):
    told: list[Death | None] = []
    running = await engine(tmp_path, EATER, limit=128 * MIB, told=told)

    async with asyncio.timeout(30):
        how = await running.wait()

    assert "resourceLimits.memory allows 0.12 GiB" in how
    assert how == told[0].how  # type: ignore[union-attr] # it died


@in_loop
async def test_memory_that_processes_share_counts_once(tmp_path):
    told: list[Death | None] = []
    running = await engine(tmp_path, SHARER, limit=250 * MIB, told=told)
    ending = asyncio.ensure_future(running.wait())  # noqa: TID251 - awaited below
    try:
        async with asyncio.timeout(20):
            while len(list(below(running.pid))) < 3:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)
        await asyncio.sleep(3 * limits.LOOK_S)

        assert not ending.done()
        assert 100 * MIB < limits.memory_bytes(running.pid, limit_bytes=250 * MIB) < 250 * MIB
    finally:
        await running.stop(drain_s=5.0)
        await ending


@in_loop
async def test_a_process_is_pinned_with_all_that_it_starts(tmp_path):
    core = min(os.sched_getaffinity(0))
    running = await engine(tmp_path, EATER, limit=0, told=[])
    try:
        limits.pin(running.pid, (core,))
        async with asyncio.timeout(20):
            while limits.memory_bytes(running.pid, limit_bytes=0) < 300 * MIB:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        (child,) = below(running.pid)

        assert {core} == os.sched_getaffinity(child) == os.sched_getaffinity(running.pid)
    finally:
        await running.stop(drain_s=5.0)
