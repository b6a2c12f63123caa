"""Processes under measurement: pinned to CPUs, with the CPU time of their whole tree from the kernel's scheduler accounts."""

from __future__ import annotations

import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

from shared.settings import environment

ROOT = Path(__file__).resolve().parents[2]
STOP_S = 10.0


class Process:
    """One started process tree."""

    def __init__(
        self,
        name: str,
        argv: list[str],
        *,
        cpu: int | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        if cpu is not None:
            argv = ["taskset", "-c", str(cpu), *argv]
        self.name = name
        self.log = Path(tempfile.gettempdir()) / f"headrace-bench-{os.getpid()}-{name}.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment(), "PYTHONPATH": str(ROOT), **(env or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process that was started."""
        return self._process.pid

    def cpu_s(self) -> float:
        """Return the CPU time of all threads of the tree so far, in seconds, to the nanosecond."""
        return sum(_schedstat_s(pid) for pid in _tree(self._process.pid))

    def rss_mib(self) -> float:
        """Return the resident memory of the tree in MiB."""
        return sum(_rss_kib(pid) for pid in _tree(self._process.pid)) / 1024

    def check_alive(self) -> None:
        """Raise with the end of its log where it ended."""
        if self._process.poll() is not None:
            raise RuntimeError(
                f"{self.name} ended with {self._process.returncode}:\n{self.log.read_text()[-3000:]}"
            )

    def stop(self) -> None:
        """End the tree."""
        if self._process.poll() is None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                os.killpg(self._process.pid, number)
                try:
                    self._process.wait(STOP_S)
                    break
                except subprocess.TimeoutExpired:
                    continue
        self.log.unlink(missing_ok=True)


def _tree(pid: int) -> list[int]:
    pids = [pid]
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                pids += _tree(int(child))
    except (FileNotFoundError, ProcessLookupError):
        pass
    return pids


def _schedstat_s(pid: int) -> float:
    total_ns = 0
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            total_ns += int((task / "schedstat").read_text().split()[0])
    except (FileNotFoundError, ProcessLookupError):
        pass
    return total_ns / 1e9


def _rss_kib(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_port(port: int, process: Process, *, timeout_s: float = 60.0) -> None:
    """Return when something listens on the port. Raises where the process ended or the time is up."""
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        process.check_alive()
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError(f"{process.name} does not listen on {port}")


def machine(*packages: str) -> dict[str, str]:
    """Return what the figures depend on: CPU, kernel, Python, package versions, commit."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "?",
    )
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    versions = {name: _version(name) for name in packages}
    return {
        "cpu": f"{os.cpu_count()} × {cpu}",
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "commit": commit,
        **versions,
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"
