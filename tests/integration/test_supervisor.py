"""The supervisor tells of processes that died or hung, and of no others."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from shared.processes.child import ExecLauncher, log_tail
from shared.processes.supervisor import Death, Supervisor

DEADLINE_S = 15.0


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():  # noqa: ASYNC110 - a process, not ours to be told by
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("script", "number", "told"),
    [
        ("echo up; exec sleep 60", signal.SIGKILL, ["signal SIGKILL"]),
        (
            "trap '' TERM; echo up; exec sleep 60",
            None,
            ["it did not end within 0 s and was killed"],
        ),
        ("echo up; exec sleep 60", None, []),
    ],
    ids=["killed", "hung when stopped", "stopped"],
)
def test_deaths_are_told(tmp_path, script, number, told):
    deaths: list[Death] = []
    log = tmp_path / "log"
    log.touch()

    async def scenario() -> int:
        supervisor = Supervisor(lambda _: None)
        launcher = ExecLauncher("p", ["sh", "-c", script], env={"PATH": "/usr/bin:/bin"}, log=log)
        async with asyncio.TaskGroup() as group:
            kept = supervisor.add(group, launcher, stop_s=0.2, on_death=deaths.append)
            await until(lambda: "up" in log_tail(log))
            assert kept.child is not None
            pid = kept.child.pid
            if number is not None:
                os.kill(pid, number)
                await until(lambda: bool(deaths))
            await supervisor.stop_all(None)
        return pid

    pid = asyncio.run(scenario())

    assert [Death(pid, how, log) for how in told] == deaths
