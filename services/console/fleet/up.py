"""`headrace up` from the first check to the last process gone: what is done in which order, and what the person is told."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from services.console import output
from services.console.fleet import kv_place
from services.console.fleet.boxes import Boxes
from services.console.fleet.instance import Instance
from services.console.fleet.plan import (
    ProcessPlan,
    UpOptions,
    check_memory,
    engine_plans,
    gateway_plans,
    kv_budget,
    kv_store_plan,
    tracer_plans,
)
from services.console.fleet.scrape import RULES, scrape_config
from services.console.fleet.zygote_child import EngineLauncher, EngineNursery
from shared import machine
from shared.errors import UserError
from shared.processes.child import ExecLauncher, Launcher
from shared.processes.supervisor import Kept, Supervisor
from shared.settings import NatsSettings, read_secret

if TYPE_CHECKING:
    from services.console.fleet.ready import FleetWatch
    from shared.bus import Bus

NATS_STOP_S = 5.0
PROGRESS_S = 0.5


class Model(msgspec.Struct, frozen=True):
    """What the engines load."""

    name: str
    path: Path | None
    weight_bytes: int


FindModel = Callable[[], Awaitable[Model]]
"""Finds the model, fetching it where needed; runs while the engines' imports run."""


class Up:
    """One platform on this machine, for as long as `run` runs."""

    def __init__(
        self,
        options: UpOptions,
        *,
        instance: Instance,
        env: Mapping[str, str],
        root: Path,
        api_key: str | None,
    ) -> None:
        if options.has_kv_store:
            socket = kv_place.socket_path(instance.folder)
            options = msgspec.structs.replace(options, kv_store=str(socket))
        self._options = options
        self._instance = instance
        self._root = root
        self._env = {**env, "PYTHONPATH": str(root)}
        self._api_key = api_key
        self._supervisor = Supervisor(output.note)
        shelf = instance.black_boxes
        self._boxes = Boxes(shelf / "live", shelf, say=output.note)
        self._bus: Bus | None = None
        self._nats: Kept | None = None
        self._nursery: EngineNursery | None = None

    @property
    def url(self) -> str:
        """Where clients reach the gateway."""
        name = "127.0.0.1" if self._options.host in {"0.0.0.0", "::"} else self._options.host  # noqa: S104 -- compared, not bound
        return f"http://{name}:{self._options.port}"

    async def run(self, find_model: FindModel) -> int:
        """Start everything, serve until Ctrl-C, stop everything; return the exit code. Raises `UserError` where it cannot start."""
        self._check()
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._asked_to_stop, stop)
        try:
            async with asyncio.TaskGroup() as group:
                starting = group.create_task(self._start(group, find_model), name="start")
                await stop.wait()
                starting.cancel()
                await self._stop()
        except* UserError as errors:
            await self._stop()
            raise _first(errors) from None
        return 0

    def _asked_to_stop(self, stop: asyncio.Event) -> None:
        if stop.is_set():
            output.note("ending at once")
            for kept in self._supervisor.kept:
                kept.kill()
        stop.set()

    def _check(self) -> None:
        options = self._options
        self._instance.claim()
        self._boxes.keep_found()
        machine.check_disk(self._instance.folder)
        machine.check_port("127.0.0.1", options.nats_port, what="NATS", option="--nats-port")
        machine.check_port(options.host, options.port, what="HTTP", option="--port")
        if options.tracer:
            machine.check_port(
                "127.0.0.1", options.metrics_port, what="metrics", option="--metrics-port"
            )

    async def _start(self, group: asyncio.TaskGroup, find_model: FindModel) -> None:
        secrets = self._instance.write_nats(port=self._options.nats_port)
        if self._options.backend == "vllm":
            self._nursery = EngineNursery(group, env=self._env, log=self._instance.log("zygote"))
            await self._nursery.warm()
        # Only now, here and below: half a second of imports, for which the zygote need not wait.
        from services.console.fleet.ready import nats_greets  # noqa: PLC0415

        self._nats = self._supervisor.add(group, self._nats_launcher(), stop_s=NATS_STOP_S)
        await nats_greets(self._options.nats_port)
        gateways = gateway_plans(
            self._options, secrets=secrets, metrics_ports=machine.free_ports(self._options.gateways)
        )
        for plan in gateways:
            self._keep(group, plan)
        model = await find_model()
        check_memory(
            self._options,
            weight_bytes=model.weight_bytes,
            available_bytes=machine.available_memory_bytes(),
        )
        engines = engine_plans(
            self._options,
            service=model.name,
            model=model.path,
            boxes=self._boxes.live,
            secrets=secrets,
            metrics_ports=machine.free_ports(self._options.engines),
        )
        tracers = tracer_plans(self._options, secrets=secrets)
        stores = [self._kv_plan(secrets)] if self._options.has_kv_store else []
        for plan in stores:
            self._keep(group, plan)
        self._instance.write_scrape(
            scrape_config((*gateways, *engines, *tracers, *stores), rules=self._root / RULES)
        )
        await self._start_engines(group, model.name, engines, tracers)

    async def _start_engines(
        self,
        group: asyncio.TaskGroup,
        model: str,
        engine_plans: list[ProcessPlan],
        tracer_plans: list[ProcessPlan],
    ) -> None:
        from services.console.fleet.ready import FleetWatch, gateway_ready  # noqa: PLC0415
        from shared.natsbus import NatsBus  # noqa: PLC0415

        options = self._options
        secret = read_secret(self._instance.folder / "console.password")
        engines = {plan.name: self._keep(group, plan) for plan in engine_plans}
        tracers = [self._keep(group, plan) for plan in tracer_plans]
        watch = FleetWatch(engines, tracers, gateways=options.gateways, say=output.note)
        address = NatsSettings(
            url=f"nats://127.0.0.1:{options.nats_port}",
            user="console",
            password=secret,
        )
        self._bus = self._boxes.bus = await NatsBus.connect(
            address, group=group, name="headrace up"
        )
        await watch.follow(self._bus)
        progress = group.create_task(self._show_progress(watch, len(engines)), name="progress")
        try:
            async with asyncio.timeout(options.start_timeout_s):
                await watch.all_ready()
                await gateway_ready(self.url)
        except TimeoutError as error:
            raise UserError(
                f"not ready within {options.start_timeout_s:.0f} s: {watch.what_lacks()}",
                hint=f"look into {self._instance.logs}, or raise --start-timeout",
            ) from error
        finally:
            progress.cancel()
            output.progress_done()
        await self._greet(model)

    async def _show_progress(self, watch: FleetWatch, wanted: int) -> None:
        clock = asyncio.get_running_loop().time
        start_s = clock()
        while watch.ready_count < wanted:
            output.progress(
                f"starting: {watch.ready_count} of {wanted} engines ready, {clock() - start_s:.0f} s"
            )
            await asyncio.sleep(0.5)
        output.progress_done()

    async def _greet(self, model: str) -> None:
        from services.console.fleet.ready import first_answer  # noqa: PLC0415

        if self._options.api_keys and self._api_key is None:
            output.note(
                "API keys are on and HEADRACE_API_KEY is not set: no warm-up prompt was sent"
            )
        else:
            answer = await first_answer(self.url, model=model, api_key=self._api_key)
            output.note(f"warm-up answer: {answer.strip()!r}")
        messages = '[{"role": "user", "content": "What is the capital of France?"}]'
        body = f'{{"model": "{model}", "stream": true, "messages": {messages}}}'
        auth = ' -H "Authorization: Bearer $HEADRACE_API_KEY"' if self._options.api_keys else ""
        if self._options.tracer:
            output.note(f"metrics: http://127.0.0.1:{self._options.metrics_port}/metrics")
        output.note(f"for Prometheus: --config.file={self._instance.scrape_file}")
        output.line(
            f"Headrace serves {model} at {self.url}/v1 and nats://127.0.0.1:{self._options.nats_port} (Ctrl-C stops it)"
        )
        output.line(
            f"  curl -N {self.url}/v1/chat/completions -H 'Content-Type: application/json'{auth} -d '{body}'"
        )

    def _kv_plan(self, secrets: Mapping[str, Path]) -> ProcessPlan:
        folders = kv_place.folders(self._options.kv_folders, default=self._instance.folder)
        budget = kv_budget(self._options, free_bytes=kv_place.free_bytes(folders))
        (port,) = machine.free_ports(1)
        return kv_store_plan(
            self._options,
            folders=folders,
            budget_bytes=budget,
            secrets=secrets,
            metrics_port=port,
        )

    def _nats_launcher(self) -> Launcher:
        return ExecLauncher(
            "nats", self._instance.nats_argv, env=self._env, log=self._instance.log("nats")
        )

    def _keep(self, group: asyncio.TaskGroup, plan: ProcessPlan) -> Kept:
        return self._supervisor.add(
            group, self._launcher(plan), stop_s=plan.stop_s, on_death=self._boxes.keep_of
        )

    def _launcher(self, plan: ProcessPlan) -> Launcher:
        log = self._instance.log(plan.name)
        env = {**self._env, **plan.env}
        if self._nursery is not None and plan.module == "services.engine":
            return EngineLauncher(plan.name, self._nursery, list(plan.args), env=plan.env, log=log)
        argv = [sys.executable, "-m", plan.module, *plan.args]
        return ExecLauncher(plan.name, argv, env=env, log=log)

    async def _stop(self) -> None:
        output.note("stopping")
        if self._bus is not None:
            await self._bus.close()
        await self._supervisor.stop_all(self._nats)
        if self._nursery is not None:
            await self._nursery.stop()
        self._boxes.drop()


def _first(errors: BaseExceptionGroup[UserError]) -> UserError:
    """Return the first single error of a group."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, UserError)
    return error
