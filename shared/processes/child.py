"""One process of the fleet behind a small port, and the plain way to run it: exec with its output in a log file.

A child dies with this process, however it ends (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
LOG_TAIL_BYTES = 16_384
LOG_KEEP_BYTES = 32 << 20
"""A log beyond this starts anew at the next start; the old one is kept once."""


class Child(Protocol):
    """A started process."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    async def wait(self) -> int:
        """Return its exit code when it ended; minus the number where a signal ended it. Safe to call twice."""
        ...

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; one that has ended is ignored."""
        ...


class Launcher(Protocol):
    """A way to start one process of the fleet, again and again."""

    @property
    def name(self) -> str:
        """Its name for people, and of its log."""
        ...

    @property
    def log(self) -> Path:
        """Where its output goes."""
        ...

    async def start(self) -> Child:
        """Start a new life. Raises `OSError`, `UserError`."""
        ...


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent is gone; runs in the child before exec."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class ExecChild:
    """A child started by exec, leader of a session of its own so that a terminal's Ctrl-C reaches only us."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def wait(self) -> int:
        """Return its exit code when it ended."""
        return await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; one that has ended is ignored."""
        if self._process.returncode is None:
            self._process.send_signal(number)


class ExecLauncher:
    """Starts a command line."""

    def __init__(self, name: str, argv: list[str], *, env: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        self._argv = argv
        self._env = dict(env)

    async def start(self) -> Child:
        """Start a new life; output is appended to the log."""
        with self.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        return ExecChild(process)


def log_file(folder: Path, name: str) -> Path:
    """Return the log of a process, rotated where it has grown."""
    path = folder / f"{name}.log"
    if log_size(path) > LOG_KEEP_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return path


def log_size(log: Path) -> int:
    """Return where the next output of a process will begin in its log."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


def exit_text(code: int) -> str:
    """Return for people how a process ended."""
    if code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"


def log_tail(log: Path, *, since: int = 0, lines: int = 12) -> str:
    """Return the last lines of a log from `since` on, or an empty text where there are none."""
    try:
        with log.open("rb") as file:
            file.seek(max(since, log.stat().st_size - LOG_TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
