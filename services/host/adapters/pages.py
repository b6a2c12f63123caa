"""A file with the metrics pages of the engines here, which come and go: Prometheus reads it again when it changes (`file_sd_configs`)."""

from __future__ import annotations

import json
import socket
from pathlib import Path

FILE = "engines.json"
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


class Pages:
    """The file in a host's folder."""

    def __init__(self, folder: Path, *, metrics_host: str) -> None:
        self._file = folder / FILE
        self._address = "127.0.0.1" if metrics_host in _LOOPBACK else socket.gethostname()
        self._ports: dict[str, int] = {}

    def add(self, name: str, port: int) -> None:
        """Name one more. Raises `OSError`."""
        self._ports[name] = port
        self.write()

    def remove(self, name: str) -> None:
        """Name it no more. Raises `OSError`."""
        if self._ports.pop(name, None) is not None:
            self.write()

    def write(self) -> None:
        """Write the file, whole or not at all. Raises `OSError`."""
        found = [
            {"targets": [f"{self._address}:{port}"], "labels": {"process": name}}
            for name, port in sorted(self._ports.items())
        ]
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(found, indent=1) + "\n")
        new.replace(self._file)
