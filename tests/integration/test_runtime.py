"""A service process: how it stops, how it fails, what it says then. Real processes and real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shared.runtime import EXIT_FAILED, EXIT_UNDRAINED, EXIT_USER_ERROR

ROOT = Path(__file__).resolve().parents[2]
PROLOGUE = """
import asyncio, sys, time
from shared import logs
from shared.errors import UserError
from shared.runtime import run
logs.configure(logs.LogSettings(format="json"), service="test")
def say(word):
    sys.stdout.write(word + "\\n"); sys.stdout.flush()
"""


@contextmanager
def service(body: str, *, drain_s: float = 5.0) -> Iterator[subprocess.Popen[str]]:
    """Run `async def main(rt)` from a text as a service; wait until it says `up`."""
    script = f"{PROLOGUE}\n{body}\nsys.exit(run(main, drain_s={drain_s}))"
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert "up\n" == process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr."""
    out, err = process.communicate(timeout=20)
    return process.returncode, out, err


DRAINS = """
async def main(rt):
    rt.health.move("ready")
    say("up")
    await rt.stop.wait()
    say(f"draining {rt.health.state} {rt.health.reason}")
    await asyncio.sleep(0.1)
    say("drained")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_service_drain_and_end_well(number: signal.Signals):
    with service(DRAINS) as process:
        process.send_signal(number)
        code, out, err = ended(process)

    assert (0, f"draining draining {number.name}\ndrained\n") == (code, out)
    assert '"event": "stopped"' in err


def test_the_drain_is_cut_off_at_its_deadline_but_cleanup_runs():
    body = """
async def main(rt):
    say("up")
    await rt.stop.wait()
    try:
        await asyncio.sleep(3600)
    finally:
        say("cleaned")
"""
    with service(body, drain_s=0.3) as process:
        process.send_signal(signal.SIGTERM)
        code, out, err = ended(process)

    assert (EXIT_UNDRAINED, "cleaned\n") == (code, out)
    assert "drain_deadline_passed" in err


def test_a_second_signal_ends_it_at_once():
    body = """
async def main(rt):
    say("up")
    await rt.stop.wait()
    say("draining")
    await asyncio.sleep(3600)
"""
    with service(body, drain_s=3600) as process:
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert "draining\n" == process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        code, _, err = ended(process)

    assert 128 + signal.SIGTERM == code
    assert "second_signal_ends_at_once" in err


def test_when_main_returns_its_other_tasks_are_cancelled():
    body = """
async def forever():
    try:
        await asyncio.sleep(3600)
    finally:
        say("cancelled")

async def main(rt):
    rt.group.create_task(forever())
    say("up")
    await asyncio.sleep(0.05)
"""
    with service(body) as process:
        code, out, _ = ended(process)

    assert (0, "cancelled\n") == (code, out)


def test_a_users_error_is_one_line_without_a_traceback():
    body = """
async def main(rt):
    say("up")
    async with asyncio.TaskGroup() as inner:
        inner.create_task(fail())

async def fail():
    raise UserError("port 80 is taken", hint="choose another with --port")
"""
    with service(body) as process:
        code, _, err = ended(process)

    assert (EXIT_USER_ERROR, "error: port 80 is taken; choose another with --port\n") == (code, err)


@pytest.mark.parametrize("where", ["main", "task"])
def test_a_bug_ends_the_whole_service_with_a_traceback(where: str):
    body = f"""
async def fail():
    raise KeyError("a bug")

async def main(rt):
    say("up")
    if {where!r} == "main":
        await fail()
    rt.group.create_task(fail())
    await asyncio.sleep(3600)
"""
    with service(body) as process:
        code, _, err = ended(process)

    assert EXIT_FAILED == code
    assert "service_failed" in err
    assert "KeyError: 'a bug'" in err


def test_it_dies_with_its_parent():
    """The parent starts a child that asks for it, prints the child's pid and is killed."""
    parent = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", f'''
import time
from shared.runtime import die_with_parent
die_with_parent({os.getpid()})
print("ready", flush=True)
time.sleep(60)
'''], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", parent], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()

    deadline_s = time.monotonic() + 10
    while not gone(child) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert gone(child)


def gone(pid: int) -> bool:
    """Whether a process has ended; test runs adopt orphans, so it may be a zombie of ours."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return not Path(f"/proc/{pid}").exists()


def test_it_does_not_start_when_its_parent_is_gone_already():
    script = (
        "import os; from shared.runtime import die_with_parent; die_with_parent(os.getppid() + 1)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False, timeout=30)

    assert 128 + signal.SIGTERM == done.returncode
