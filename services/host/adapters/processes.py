"""Replicas as processes of this machine: children of zygotes, held to their limits, with a log and a black box each."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from services.host.adapters import limits
from services.host.adapters.models import ModelDesk
from services.host.adapters.nursery import Nursery, Preload
from services.host.adapters.orphans import Notes
from services.host.adapters.pages import Pages
from services.host.boxes import Boxes
from services.host.ports import Found, NotNow, Order, Prepared, Running, Say
from services.host.room import Grant
from services.host.settings import HostSettings
from shared import logs, machine
from shared.processes.child import Child, exit_text, log_file, log_size, log_tail
from shared.processes.supervisor import KILL_AFTER_S, Death
from shared.spec.engine import engine_arguments
from shared.spec.model import GIB

STOP_S = 5.0
"""From the end of its drain to SIGKILL."""


class EngineProcess:
    """One life of a replica."""

    def __init__(
        self,
        child: Child,
        *,
        log: Path,
        log_from: int,
        metrics_port: int,
        limit_bytes: int,
        on_end: Callable[[Death | None], None],
    ) -> None:
        self.metrics_port = metrics_port
        self._child = child
        self._log = log
        self._log_from = log_from
        self._limit_bytes = limit_bytes
        self._on_end = on_end
        self._over = ""

    @property
    def pid(self) -> int:
        """See `Running.pid`."""
        return self._child.pid

    async def wait(self) -> str:
        """See `Running.wait`."""
        code = await self._code()
        how = self._over or exit_text(code)
        self._on_end(Death(self.pid, how, self._log))
        words = log_tail(self._log, since=self._log_from)
        return f"{how}; the end of its log:\n{words}" if words else how

    async def _code(self) -> int:
        while True:
            try:
                async with asyncio.timeout(limits.LOOK_S if self._limit_bytes else None):
                    return await self._child.wait()
            except TimeoutError:
                self._look()

    def _look(self) -> None:
        """End it where it takes more memory than it may."""
        held = limits.memory_bytes(self.pid, limit_bytes=self._limit_bytes)
        if held > self._limit_bytes:
            self._over = f"it took {held / GIB:.2f} GiB of memory, resourceLimits.memory allows {self._limit_bytes / GIB:.2f} GiB"
            self._child.signal(signal.SIGKILL)

    async def stop(self, *, drain_s: float) -> None:
        """See `Running.stop`."""
        death: Death | None = None
        if not await self._has_ended(signal.SIGTERM, drain_s + STOP_S):
            how = f"it did not end within {drain_s + STOP_S:.0f} s and was killed"
            death = Death(self.pid, how, self._log)
            await self._has_ended(signal.SIGKILL, KILL_AFTER_S)
        self._on_end(death)

    async def _has_ended(self, number: signal.Signals, wait_s: float) -> bool:
        self._child.signal(number)
        try:
            async with asyncio.timeout(wait_s):
                await self._child.wait()
        except TimeoutError:
            return False
        return True


class ProcessDriver:
    """Starts engines on this machine."""

    kind: Literal["processes"] = "processes"

    def __init__(
        self,
        settings: HostSettings,
        nurseries: Mapping[Preload, Nursery],
        *,
        env: Mapping[str, str],
    ) -> None:
        self._nurseries = nurseries
        self._settings = settings
        folder = Path(settings.folder)
        self._logs = folder / "logs"
        self._notes = Notes(folder / "replicas")
        self._pages = Pages(folder, metrics_host=settings.metrics_host)
        self._models = ModelDesk(settings.models, env=env)
        self._log = logs.get("host")
        shelf = folder / "black-boxes"
        self.boxes = Boxes(shelf / "live", shelf, say=self._say_of_boxes)

    def _say_of_boxes(self, text: str) -> None:
        self._log.warning("black_box", said=text)

    async def found(self) -> list[Found]:
        """See `Driver.found`. Processes end with their host; those that did not are ended here."""
        for name in await asyncio.to_thread(self._notes.end_left):
            self._log.warning("orphan_ended", replica=name)
        self._pages.write()
        self.boxes.keep_found()
        return []

    async def prepare(self, order: Order, say: Say) -> Prepared:
        """See `Driver.prepare`."""
        prepared = await self._models.prepare(order, say)
        say("imports")
        await self._nursery(order).ready()
        return prepared

    async def start(self, order: Order, prepared: Prepared, grant: Grant) -> Running:
        """See `Driver.start`."""
        log = log_file(self._logs, order.name)
        since = log_size(log)
        port = grant.metrics_port or machine.free_ports(1)[0]
        args = [
            *self._own_args(order, port),
            *engine_arguments(
                order.spec, model_path=str(prepared.model), kv_store=self._settings.kv_store
            ),
        ]
        child = await self._nursery(order).spawn(args, env=self._env_of(grant), log=log)
        try:
            limits.pin(child.pid, grant.cores)
            self._notes.write(order.name, child.pid)
            self._pages.add(order.name, port)
        except OSError as error:
            child.signal(signal.SIGKILL)
            raise NotNow(f"its process could not be set up: {error}") from error
        return EngineProcess(
            child,
            log=log,
            log_from=since,
            metrics_port=port,
            limit_bytes=order.spec.resources.memory_bytes or 0,
            on_end=lambda death: self._on_end(order.name, death),
        )

    def _on_end(self, name: str, death: Death | None) -> None:
        self._notes.remove(name)
        with suppress(OSError):  # it is written whole with the next start
            self._pages.remove(name)
        if death is not None:
            self.boxes.keep_of(death)

    def _nursery(self, order: Order) -> Nursery:
        return self._nurseries["vllm" if order.spec.engine.backend == "vllm" else "none"]

    def _own_args(self, order: Order, port: int) -> list[str]:
        """Return what the host says to an engine; what the spec says comes after it and wins."""
        args = ["--name", order.name, "--version", order.revision, "--metrics-port", str(port)]
        args += ["--drain-s", str(self._settings.drain_s), "--zone", self._settings.zone]
        args += ["--metrics-host", self._settings.metrics_host]
        return [*args, "--blackbox-folder", str(self.boxes.live)]

    def _env_of(self, grant: Grant) -> dict[str, str]:
        settings = self._settings
        env = {"HEADRACE_ENGINE_NATS_URL": settings.engine.url or settings.nats.url}
        if settings.engine.user:
            env["HEADRACE_ENGINE_NATS_USER"] = settings.engine.user
        if settings.engine.password_file:
            env["HEADRACE_ENGINE_NATS_PASSWORD_FILE"] = settings.engine.password_file
        if grant.gpus:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(grant.gpus)
        return env

    async def close(self) -> None:
        """See `Driver.close`."""
        for nursery in self._nurseries.values():
            await nursery.stop()
        self.boxes.drop()
