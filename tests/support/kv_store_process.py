"""A real KV store in a process of its own, without the bus: engines in tests and benchmarks connect to it, and it can be killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from typing_extensions import override

START_S = 30.0
ROOT = Path(__file__).parents[2]


class KvStoreProcess:
    """The process, started anew after each `kill`."""

    def __init__(self, *folders: Path, budget_bytes: int = 1 << 30) -> None:
        # A socket's path is short.
        self.path = Path(tempfile.mkdtemp(prefix="kv")) / "s"
        self._arguments = ["--socket", str(self.path), "--budget-bytes", str(budget_bytes)]
        self._arguments += ["--folders", json.dumps([str(each) for each in folders])]
        self._arguments += ["--bus", "false"]
        self._process: subprocess.Popen[bytes] | None = None

    @override
    def __repr__(self) -> str:
        return f"<KvStoreProcess {self.path}>"

    def start(self) -> KvStoreProcess:
        """Start, and return once engines can connect."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "services.kvstore", *self._arguments], cwd=ROOT, stdout=2
        )
        ends_at = time.monotonic() + START_S
        while not self._answers():
            assert time.monotonic() < ends_at, "the KV store did not start"
            assert self._process.poll() is None, "the KV store has ended"
            time.sleep(0.02)
        return self

    def signal(self, number: int) -> None:
        """Send a signal to the store, not to its mirrors."""
        assert self._process is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()

    def stop(self) -> None:
        """End it in order. A second call changes nothing."""
        if self._process is None or self._process.poll() is not None:
            return
        self.signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            self.kill()

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            return sock.connect_ex(str(self.path)) == 0
