"""A real `vllm serve` on a free loopback port: the server that the OpenAI adapter, and comparisons, are tested against.

The CPU build installs no metadata named vllm, which its own command looks up: a minimal one is put on a path of this server alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.support.nats_server import free_port

START_S = 240.0
"""Deadline of a start; a quiet machine needs 35 s, nearly all of it imports."""
STOP_S = 15.0
MAX_MODEL_LEN = 1024
SERVED_NAME = "tiny"


class VllmServe:
    """One server process group."""

    def __init__(self, model: Path, folder: Path) -> None:
        self._model = model
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Base address for clients."""
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def log(self) -> str:
        """The end of what the server wrote."""
        path = self._folder / "vllm.log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def start(self) -> None:
        """Start and return when it answers."""
        with (self._folder / "vllm.log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command(),
                env=self._environment(),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            if self._process.poll() is not None:
                raise RuntimeError(f"vllm serve ended with {self._process.returncode}:\n{self.log}")
            with suppress(OSError, urllib.error.URLError):
                urllib.request.urlopen(f"{self.url}/models", timeout=2).close()  # noqa: S310 - loopback
                return
            time.sleep(0.2)
        self.stop()
        raise TimeoutError(f"vllm serve did not answer within {START_S} s:\n{self.log}")

    def stop(self) -> None:
        """End the server and the processes it started."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_S)

    def _command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(self._model)),
            *("--host", "127.0.0.1", "--port", str(self._port)),
            *("--served-model-name", SERVED_NAME, "--max-model-len", str(MAX_MODEL_LEN)),
            *("--max-num-seqs", "32", "--enforce-eager", "--disable-uvicorn-access-log"),
        ]

    def _environment(self) -> dict[str, str]:
        paths = [str(self._metadata())] if _lacks_metadata() else []
        return {
            # An engine of this process may have set some for itself.
            **{name: value for name, value in os.environ.items() if not name.startswith("VLLM_")},  # noqa: TID251 - for a child
            "PYTHONPATH": os.pathsep.join(paths),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "HF_HUB_OFFLINE": "1",
        }

    def _metadata(self) -> Path:
        """Return a folder with the metadata that the CPU build lacks; vLLM takes its platform from the version's suffix."""
        folder, full = self._folder / "metadata", f"{version('vllm-cpu')}+cpu"
        info = folder / f"vllm-{full}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {full}\n")
        return folder


def _lacks_metadata() -> bool:
    try:
        version("vllm")
    except PackageNotFoundError:
        return True
    return False
