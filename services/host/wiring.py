"""From settings to a running host: folder, zygote, bus, metrics page, service.

The zygote's imports take longest and begin first; what else is slow to import comes after it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TextIO

import msgspec

from services.host.adapters.nursery import Nursery, Preload
from services.host.ports import Driver
from services.host.settings import PREFIX, HostSettings
from shared import machine
from shared.errors import UserError
from shared.ids import new_host_id
from shared.processes.child import log_file
from shared.runtime import Runtime
from shared.settings import environment

ZYGOTES: dict[Preload, str] = {"vllm": "zygote", "none": "zygote-plain"}
"""What zygotes import, and the name of their logs."""
LOCK = "host.lock"
EPOCH = "host-epoch.json"


async def serve(chosen: HostSettings, runtime: Runtime) -> None:
    """Run a host until the runtime says stop. Raises `UserError`."""
    folder = Path(chosen.folder)
    with _claimed(folder):
        env = {key: value for key, value in environment().items() if not key.startswith(PREFIX)}
        nurseries = {
            preload: Nursery(
                preload, group=runtime.group, env=env, log=log_file(folder / "logs", name)
            )
            for preload, name in ZYGOTES.items()
        }
        if chosen.warm != "none" and chosen.driver == "processes":
            await nurseries["vllm" if chosen.warm == "vllm" else "none"].warm()
        await _serve(chosen, runtime, nurseries, env)


async def _serve(
    chosen: HostSettings,
    runtime: Runtime,
    nurseries: Mapping[Preload, Nursery],
    env: Mapping[str, str],
) -> None:
    # Only now: half a second of imports, for which the zygote need not wait.
    from services.host.adapters.compose import ComposeDriver  # noqa: PLC0415
    from services.host.adapters.devices import visible_gpus  # noqa: PLC0415
    from services.host.adapters.processes import ProcessDriver  # noqa: PLC0415
    from services.host.metrics import HostCollector  # noqa: PLC0415
    from services.host.replicas import Replicas  # noqa: PLC0415
    from services.host.room import Room  # noqa: PLC0415
    from services.host.service import HostService  # noqa: PLC0415
    from shared import metrics  # noqa: PLC0415
    from shared.metrics_page import serve_page  # noqa: PLC0415
    from shared.natsbus import NatsBus  # noqa: PLC0415

    folder, first, memory = Path(chosen.folder), chosen.first_port, chosen.memory_bytes
    gpus = await asyncio.to_thread(visible_gpus, env) if chosen.gpus is None else chosen.gpus
    room = Room(
        memory_bytes=machine.available_memory_bytes() if memory is None else memory,
        cores=sorted(os.sched_getaffinity(0)),
        gpus=gpus,
        ports=range(first, first + chosen.ports) if first else (),
    )
    bus = await NatsBus.connect(chosen.nats, group=runtime.group, name=chosen.name or "host")
    driver: Driver
    if chosen.driver == "compose":
        driver = ComposeDriver(chosen, name=chosen.name or socket.gethostname(), env=env)
    else:
        driver = processes = ProcessDriver(chosen, nurseries, env=env)
        processes.boxes.bus = bus
    replicas = Replicas(room, epoch=_read_epoch(folder))
    service = HostService(
        chosen,
        bus,
        driver,
        replicas=replicas,
        me=new_host_id(),
        keep_epoch=partial(_write_epoch, folder),
    )
    registry = metrics.new_registry("host")
    registry.register(metrics.BusCollector(bus))
    registry.register(HostCollector(replicas))
    try:
        page = partial(metrics.render, registry)
        async with serve_page(chosen.metrics_port, page, host=chosen.metrics_host):
            await service.run(runtime)
    finally:
        await bus.close()


def _claimed(folder: Path) -> TextIO:
    """Return the lock of the folder, held until it is closed. Raises `UserError`."""
    try:
        (folder / "logs").mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (folder / LOCK).open("w")
    except OSError as error:
        raise UserError(
            f"cannot write to {folder}: {error.strerror}", hint="give the host another --folder"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise UserError(
            f"a host already runs from {folder}", hint="end it, or give this one another --folder"
        ) from error
    return lock


def _read_epoch(folder: Path) -> int:
    """Return the highest epoch that an earlier life obeyed: an operator that was paused over its end must not be obeyed now."""
    try:
        return msgspec.json.decode((folder / EPOCH).read_bytes(), type=int)
    except (OSError, msgspec.DecodeError):
        return 0


def _write_epoch(folder: Path, epoch: int) -> None:
    new = folder / f"{EPOCH}.new"
    new.write_bytes(msgspec.json.encode(epoch))
    new.replace(folder / EPOCH)
