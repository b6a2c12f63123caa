"""A real KV store in a process of its own, without the bus: engines in tests and benchmarks connect to it, and it can be killed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from typing_extensions import override

from services.kvstore.settings import KvStoreSettings
from services.kvstore.store import Store

START_S = 30.0
ROOT = Path(__file__).parents[2]


class KvStoreProcess:
    """The process, started anew after each `kill`."""

    def __init__(self, *folders: Path, budget_bytes: int = 1 << 30) -> None:
        # A socket's path is short.
        self.path = Path(tempfile.mkdtemp(prefix="kv")) / "s"
        self._arguments = [str(self.path), str(budget_bytes), *map(str, folders)]
        self._process: subprocess.Popen[bytes] | None = None

    @override
    def __repr__(self) -> str:
        return f"<KvStoreProcess {self.path}>"

    def start(self) -> KvStoreProcess:
        """Start, and return once engines can connect."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *self._arguments], cwd=ROOT, stdout=2
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


async def serve(path: str, budget_bytes: str, *folders: str) -> None:
    """Run the store until SIGTERM."""
    settings = KvStoreSettings(
        folders=folders, socket=path, budget_bytes=int(budget_bytes), bus=False
    )
    store = Store(settings, name="test")
    store.open()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)  # type: ignore[union-attr]
    try:
        await store.run()
    except asyncio.CancelledError:
        await store.close(drain_s=5.0)


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
