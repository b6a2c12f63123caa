"""Replicas as containers of a compose file's `engine` service, by the docker command line.

They outlive the host, and its next life takes them over: what a container is for stands in its labels.
Memory and cores are held by the container's own cgroup.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

import msgspec

from services.host.adapters.models import ModelDesk
from services.host.ports import CannotRun, Found, NotNow, Order, Prepared, Running, Say
from services.host.room import Grant
from services.host.settings import ComposeSettings, HostSettings
from shared import logs
from shared.errors import UserError
from shared.ids import ServiceName
from shared.spec.engine import engine_arguments
from shared.spec.reading import from_document
from shared.spec.writing import to_document

HOST_LABEL = "io.headrace.host"
ORDER_LABEL = "io.headrace.order"
COMMAND_S = 120.0
"""Deadline of a docker command; a busy engine takes seconds to make a container."""
STOP_S = 5.0
LOG_LINES = 12
AGAIN_S = 2.0
GONE = "no such container"


class _Label(msgspec.Struct, frozen=True, kw_only=True):
    """An order as a container carries it."""

    name: str
    service: ServiceName
    revision: str
    fingerprint: str
    spec: dict[str, Any]


class Container:
    """One life of a replica."""

    pid = 0
    metrics_port = 0
    """Prometheus finds containers by the name of their service."""

    def __init__(self, docker: Docker, name: str) -> None:
        self._docker = docker
        self._name = name
        self._end: str | None = None

    async def wait(self) -> str:
        """See `Running.wait`."""
        if self._end is None:
            self._end = await self._ended()
            await self._remove()
        return self._end

    async def _ended(self) -> str:
        while True:
            try:
                code = await self._docker.run("wait", self._name, timeout_s=None)
                killed = await self._docker.run("inspect", "-f", "{{.State.OOMKilled}}", self._name)
                words = await self._docker.run("logs", "--tail", str(LOG_LINES), self._name)
            except NotNow as error:
                if GONE in str(error).lower():
                    return "its container was removed"
                await asyncio.sleep(AGAIN_S)  # the docker engine is away; the container need not be
                continue
            how = f"exit code {code}"
            if killed == "true":
                how = f"it took more memory than resourceLimits.memory allows ({how})"
            return f"{how}; the end of its log:\n{words}" if words else how

    async def stop(self, *, drain_s: float) -> None:
        """See `Running.stop`."""
        with suppress(NotNow):  # it is gone already
            seconds = str(int(drain_s + STOP_S))
            timeout_s = drain_s + STOP_S + COMMAND_S
            await self._docker.run("stop", "-t", seconds, self._name, timeout_s=timeout_s)
        await self._remove()

    async def _remove(self) -> None:
        with suppress(NotNow):
            await self._docker.run("rm", "-f", self._name)


class Docker:
    """The docker command line."""

    def __init__(self, program: str, *, env: Mapping[str, str]) -> None:
        self._program = program
        self._env = dict(env)

    async def run(self, *words: str, timeout_s: float | None = COMMAND_S) -> str:
        """Return what a command says. Raises `NotNow` with its complaint, `UserError` where there is no docker."""
        try:
            process = await asyncio.create_subprocess_exec(
                self._program,
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._env,
                start_new_session=True,
            )
        except OSError as error:
            raise UserError(
                f"cannot run {self._program}: {error.strerror}",
                hint="install the docker command line with its compose plugin",
            ) from error
        try:
            async with asyncio.timeout(timeout_s):
                out, complaint = await process.communicate()
        except TimeoutError as error:
            raise NotNow(f"docker {words[0]} took longer than {timeout_s:.0f} s") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            last = complaint.decode(errors="replace").strip().splitlines()[-3:]
            raise NotNow(f"docker {words[0]}: {' '.join(last)}")
        return (
            (complaint if words[0] == "logs" and not out else out).decode(errors="replace").strip()
        )


class ComposeDriver:
    """Starts engines as containers beside those of a compose file."""

    kind: Literal["compose"] = "compose"

    def __init__(self, settings: HostSettings, *, name: str, env: Mapping[str, str]) -> None:
        self._settings = settings
        self._compose: ComposeSettings = settings.compose
        self._name = name
        self._docker = Docker(self._compose.docker, env=env)
        self._models = ModelDesk(settings.models, env=env)
        self._log = logs.get("host")

    async def found(self) -> list[Found]:
        """See `Driver.found`."""
        label = f"label={HOST_LABEL}={self._name}"
        found = []
        for name in (
            await self._docker.run("ps", "-a", "--filter", label, "--format", "{{.Names}}")
        ).split():
            template = '{{.State.Running}} {{index .Config.Labels "' + ORDER_LABEL + '"}}'
            is_running, _, order = (
                await self._docker.run("inspect", "-f", template, name)
            ).partition(" ")
            try:
                carried = msgspec.json.decode(order, type=_Label)
                spec = from_document(carried.spec)
            except (msgspec.DecodeError, UserError) as error:
                self._log.warning("container_not_understood", container=name, reason=str(error))
                continue
            container = Container(self._docker, name)
            if is_running != "true":
                await container.stop(drain_s=0.0)
                continue
            parts = {
                field: getattr(carried, field)
                for field in ("name", "service", "revision", "fingerprint")
            }
            found.append(Found(order=Order(**parts, spec=spec), running=container))
        return found

    async def prepare(self, order: Order, say: Say) -> Prepared:
        """See `Driver.prepare`."""
        if order.spec.resources.gpu:
            raise CannotRun(
                "containers get no GPUs from this driver; run the host with --driver processes"
            )
        if not self._settings.models:
            return Prepared()  # the containers' own matter
        return await self._models.prepare(order, say)

    async def start(self, order: Order, prepared: Prepared, grant: Grant) -> Running:
        """See `Driver.start`."""
        compose, spec = self._compose, order.spec
        name = f"{compose.project}-{order.name}"
        where = f"{compose.models.rstrip('/')}/{prepared.model.name if prepared.model else spec.model.name}"
        carried = _Label(
            name=order.name,
            service=order.service,
            revision=order.revision,
            fingerprint=order.fingerprint,
            spec=to_document(spec),
        )
        with suppress(NotNow):
            await self._docker.run("rm", "-f", name)  # of a start that was never told of
        await self._docker.run(
            "compose",
            *("-p", compose.project, "-f", compose.file, "run", "-d", "--no-deps", "--use-aliases"),
            *("--name", name, "--label", f"{HOST_LABEL}={self._name}"),
            *("--label", f"{ORDER_LABEL}={msgspec.json.encode(carried).decode()}"),
            compose.service,
            *("--name", order.name, "--version", order.revision, "--zone", self._settings.zone),
            *("--drain-s", str(self._settings.drain_s)),
            *("--metrics-host", "0.0.0.0", "--metrics-port", "9102"),  # noqa: S104 - its own network
            *engine_arguments(spec, model_path=where, kv_store=self._settings.kv_store),
        )
        await self._hold(name, order, grant)
        return Container(self._docker, name)

    async def _hold(self, name: str, order: Order, grant: Grant) -> None:
        """Hold a container to its limits. Raises `NotNow`; then it does not run."""
        limits = []
        if memory := order.spec.resources.memory_bytes:
            limits += ["--memory", str(memory), "--memory-swap", str(memory)]
        if grant.cores:
            limits += ["--cpuset-cpus", ",".join(map(str, grant.cores))]
        if not limits:
            return
        try:
            await self._docker.run("update", *limits, name)
        except NotNow:
            await self._docker.run("rm", "-f", name)
            raise

    async def close(self) -> None:
        """See `Driver.close`."""
