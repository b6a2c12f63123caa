"""A whole platform as a person starts it: `headrace up` as a process, with a home folder and ports of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from shared.runtime import die_with_parent
from tests.support.nats_server import free_port

ROOT = Path(__file__).resolve().parents[2]
READY_MARK = "  curl -N "
STOP_S = 60.0


def clean_environment(home: Path) -> dict[str, str]:
    """Return the environment without settings of Headrace that the person at this machine may have."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}  # noqa: TID251 - what a process inherits
    return {**kept, "HEADRACE_HOME": str(home), "PYTHONPATH": str(ROOT)}


def descendants(pid: int) -> set[int]:
    """Return the processes below `pid`, itself included, that exist now."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return set()
    return {pid}.union(*(descendants(int(child)) for child in children))


class Platform:
    """One `headrace up`."""

    def __init__(self, home: Path, *options: str, models: Path | None = None) -> None:
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        if models is not None:
            (home / "models").symlink_to(models)
        self.port, self.nats_port, self.metrics_port = free_port(), free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.nats_url = f"nats://127.0.0.1:{self.nats_port}"
        self.output: list[str] = []
        self._options = options
        self._lines: Queue[str | None] = Queue()
        self._process: subprocess.Popen[str] | None = None

    @property
    def process(self) -> subprocess.Popen[str]:
        """The process of `headrace up`."""
        assert self._process is not None, "not started"
        return self._process

    @property
    def folder(self) -> Path:
        """Where it keeps what it writes."""
        return self.home / "platforms" / "default"

    @property
    def logs(self) -> Path:
        """Where the logs of its processes are."""
        return self.folder / "logs"

    def start(self, *, timeout_s: float) -> None:
        """Start it and return when it says that it serves. Raises with its output where it does not."""
        argv = [
            sys.executable,
            "-m",
            "services.console",
            "up",
            "--port",
            str(self.port),
            "--nats-port",
            str(self.nats_port),
            "--metrics-port",
            str(self.metrics_port),
        ]
        self._process = subprocess.Popen(
            [*argv, *self._options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=clean_environment(self.home),
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509 - it only asks the kernel; ends the platform when the run is killed
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        end_s = time.monotonic() + timeout_s
        while not self._says(READY_MARK, end_s - time.monotonic()):
            if self.process.poll() is not None or time.monotonic() > end_s:
                self.kill()
                raise AssertionError(
                    "the platform did not start:\n" + "\n".join(self.output) + self.log_text()
                )

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _says(self, mark: str, timeout_s: float) -> bool:
        """Return whether the mark came before the output ended or the time was up."""
        end_s = time.monotonic() + timeout_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.01, end_s - time.monotonic()))
            except Empty:
                return False
            if line is None:
                self.process.wait(STOP_S)
                return False
            self.output.append(line)
            if mark in line:
                return True

    def lines(self) -> list[str]:
        """Return what it has written so far."""
        while True:
            try:
                line = self._lines.get_nowait()
            except Empty:
                return self.output
            if line is not None:
                self.output.append(line)

    def log_text(self) -> str:
        """Return the logs of all processes, for a failure's report."""
        return "".join(
            f"\n--- {log.name}\n{log.read_text()[-4000:]}"
            for log in sorted(self.logs.glob("*.log"))
        )

    def pids(self) -> set[int]:
        """Return all processes of the platform."""
        return descendants(self.process.pid)

    def engine_pids(self) -> set[int]:
        """Return the processes of the engines, as they call themselves."""
        return {
            pid
            for pid in self.pids()
            if Path(f"/proc/{pid}/comm").read_text().strip() == "headrace-engine"
        }

    def engines(self) -> list[dict[str, Any]]:
        """Return what `headrace status` knows of the engines."""
        result = subprocess.run(
            [sys.executable, "-m", "services.console", "status", "--json"],
            capture_output=True,
            text=True,
            env=clean_environment(self.home),
            timeout=30,
            check=False,
        )
        found: list[dict[str, Any]] = json.loads(result.stdout)["engines"]
        return found

    def in_flight(self) -> int:
        """Return how many choices the engines work on, as their heartbeats tell."""
        return sum(engine["running"] + engine["waiting"] for engine in self.engines())

    def ready_engines(self) -> int:
        """Return how many engines serve."""
        return sum(engine["state"] == "ready" for engine in self.engines())

    def wait_idle(self, *, within_s: float) -> None:
        """Return when no engine has work. Raises where one still has after `within_s`."""
        end_s = time.monotonic() + within_s
        while left := self.in_flight():
            assert time.monotonic() < end_s, f"{left} choices are still worked on"

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Ask it to end as Ctrl-C does, wait, and return the exit code."""
        self.process.send_signal(number)
        return self._ended()

    def kill(self) -> None:
        """End what is left, whatever state it is in."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._ended()

    def _ended(self) -> int:
        """Return the exit code once the process and its output are gone."""
        code = self.process.wait(STOP_S)
        self._reader.join(STOP_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code
