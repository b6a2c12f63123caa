"""`headrace bus-config`: NATS configuration and passwords for an installation whose services do not share a folder (containers).

Each service gets a folder with its own password only. What is there already is kept, so that a second start changes nothing.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from services.console import output
from services.console.fleet.instance import BUS_FILE, PASSWORD_BYTES, bus_text, write_private
from shared.acl import SERVICES
from shared.errors import UserError
from shared.nats_config import ServerOptions, render

CONF = "nats.conf"
SERVER_FOLDER = "/bus"
"""Where the server's container sees its folder."""
READABLE = 0o644
"""Container users differ from service to service; a folder is mounted into the one container that may read it."""


def write(nats: Path, folders: dict[str, Path], *, host: str, url: str) -> None:
    """Write `nats.conf`, a password into each folder, and where the bus is into the console's. Raises `UserError`."""
    missing = [service for service in SERVICES if service not in folders]
    if missing:
        raise UserError(
            f"no folder for the password of {', '.join(missing)}",
            hint="as --secret gateway=/bus/gateway",
        )
    files = {service: folders[service] / f"{service}.password" for service in SERVICES}
    if (nats / CONF).exists() and all(file.exists() for file in files.values()):
        output.note("the bus is configured already")
        return
    passwords = {service: secrets.token_urlsafe(PASSWORD_BYTES) for service in SERVICES}
    options = ServerOptions(host=host, store_dir=f"{SERVER_FOLDER}/jetstream", passwords=passwords)
    try:
        for service, file in files.items():
            write_private(file, passwords[service], mode=READABLE)
        write_private(folders["console"] / BUS_FILE, bus_text(url), mode=READABLE)
        write_private(nats / CONF, render(options), mode=READABLE)
    except OSError as error:
        raise UserError(f"cannot write {error.filename}: {error.strerror}") from error
    output.note("wrote the configuration of the bus and a password for each service")


def parse_folders(pairs: list[str]) -> dict[str, Path]:
    """Return `gateway=/bus/gateway` as service and folder. Raises `UserError`."""
    folders: dict[str, Path] = {}
    for pair in pairs:
        service, equals, folder = pair.partition("=")
        if service not in SERVICES or not equals or not folder:
            raise UserError(f"{pair!r} is not SERVICE=FOLDER with one of {', '.join(SERVICES)}")
        folders[service] = Path(folder)
    return folders
