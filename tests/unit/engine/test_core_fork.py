"""What holds in a process forked for a core, and only there. Forks happen in a process of the test's own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.nursery import DEADLINE_S, ENV, ROOT, gone, is_running

FRONT = """
import asyncio, contextlib, os, signal, sys
from services.engine.adapters.core_fork import CORE_FORK

def fork(guard):
    with guard:
        pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(5))
        # In one write: what `print` writes in parts where output is unbuffered, the other child could split.
        os.write(1, f"child {os.getpid()} {os.getpgrp() == os.getpid()}\\n".encode())
        while True:
            signal.pause()
    return pid

async def main():
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    guarded = fork(CORE_FORK.guarded())
    fork(contextlib.nullcontext())
    if sys.argv[1] == "signal":
        await asyncio.to_thread(sys.stdin.readline)
        os.kill(guarded, signal.SIGTERM)
        _, status = await asyncio.to_thread(os.waitpid, guarded, 0)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(told.wait(), 0.3)
        print("ended", os.waitstatus_to_exitcode(status), told.is_set(), flush=True)
    await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""


@contextmanager
def front(what: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", FRONT, what]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=ENV, cwd=ROOT, stdin=pipe, stdout=pipe, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


def test_a_core_ends_with_its_front_and_other_children_do_not():
    with front("wait") as process:
        children = [read(process), read(process)]
        process.kill()
        process.wait(DEADLINE_S)
        core, other = (
            int(pid) for _, pid, has_group in sorted(children, key=lambda child: child[2] != "True")
        )

        asyncio.run(gone(core))
        assert is_running(other)
        os.kill(other, signal.SIGKILL)


def test_only_a_core_has_a_process_group_of_its_own():
    with front("wait") as process:
        groups = {read(process)[2], read(process)[2]}

        assert groups == {"True", "False"}
        end(process)


def test_a_signal_to_the_core_is_not_taken_for_the_fronts():
    with front("signal") as process:
        read(process), read(process)
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()

        assert read(process) == ["ended", "5", "False"]
        end(process)


def end(process: subprocess.Popen[str]) -> None:
    """End a front and its children; they share its session."""
    own = f"/proc/{process.pid}/task/{process.pid}/children"
    with open(own) as children:  # noqa: PTH123 - a path of the kernel
        for pid in children.read().split():
            os.kill(int(pid), signal.SIGKILL)
