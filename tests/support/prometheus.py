"""A real Prometheus and its promtool: Debian's package, as `./headrace test` unpacks it beside the environment or as the system has it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.nats_server import free_port

START_S = 30.0
BINARIES = Path(sys.prefix) / "prometheus" / "usr" / "bin"


def binary(name: str) -> str:
    """Return the path of `prometheus` or `promtool`. Raises `FileNotFoundError` that says how to get it."""
    if (BINARIES / name).exists():
        return str(BINARIES / name)
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(
            f"{name} is missing: `./headrace test` fetches it where apt works; else `sudo apt install prometheus`"
        )
    return found


def promtool(*words: str | Path, stdin: bytes = b"", cwd: Path | None = None) -> str:
    """Run promtool and return what it said. Fails with that where it finds something wrong."""
    result = subprocess.run(
        [binary("promtool"), *words],
        input=stdin,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        check=False,
    )
    said = result.stdout.decode()
    assert result.returncode == 0, said
    return said


class Prometheus:
    """One server with its data in a folder, on a loopback port; a context manager that leaves no process."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self._folder = folder
        self._port = free_port()
        self._log = folder / "prometheus.log"
        # JSON is YAML.
        (folder / "prometheus.yml").write_text(json.dumps(config))

    def __enter__(self) -> Prometheus:
        words = [
            binary("prometheus"),
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log)
        self._until_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(5)

    def _until_ready(self) -> None:
        end_s = time.monotonic() + START_S
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/-/ready", timeout=START_S):  # noqa: S310 - http on loopback
                    return
            except (urllib.error.URLError, ConnectionError):
                assert self._process.poll() is None, self._log.read_text()
                assert time.monotonic() < end_s, self._log.read_text()
                time.sleep(0.05)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an instant query: each with `metric` and `value`. Raises where it is not valid."""
        found: list[dict[str, Any]] = self.ask("query", query=expression)["result"]
        return found

    def until(self, expression: str, *, timeout_s: float = 20.0) -> list[dict[str, Any]]:
        """Return the series of a query once there is one."""
        end_s = time.monotonic() + timeout_s
        while not (found := self.query(expression)):
            assert time.monotonic() < end_s, f"no data for {expression}"
            time.sleep(0.1)
        return found

    def ask(self, path: str, **words: str) -> Any:
        """Return the data of an answer of its HTTP API."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(words)}"
        try:
            with urllib.request.urlopen(url, timeout=START_S) as answer:  # noqa: S310 - http on loopback
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{words}: {error.read().decode()}") from error
