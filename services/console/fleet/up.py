"""`headrace up` from the first check to the last process gone: what is done in which order, and what the person is told."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from services.console import output
from services.console.fleet import kv_place
from services.console.fleet.instance import Instance
from services.console.fleet.plan import (
    ProcessPlan,
    UpOptions,
    gateway_plans,
    host_plan,
    kv_budget,
    kv_store_plan,
    operator_plan,
    tracer_plans,
)
from services.console.fleet.scrape import RULES, scrape_config
from services.console.fleet.service import check_memory, service_of
from shared import machine
from shared.errors import BusError, UserError
from shared.models.fetch import must_be_made
from shared.models.store import resolve
from shared.processes.child import ExecLauncher, Launcher
from shared.processes.supervisor import Kept, Supervisor
from shared.settings import NatsSettings, read_secret

if TYPE_CHECKING:
    from services.console.fleet.declare import Told
    from services.console.fleet.watch import FleetWatch
    from shared.natsbus import NatsBus
    from shared.records import Records

NATS_STOP_S = 5.0
PROGRESS_S = 0.5


class Up:
    """One platform on this machine, for as long as `run` runs."""

    def __init__(
        self,
        options: UpOptions,
        *,
        instance: Instance,
        models: Path,
        env: Mapping[str, str],
        root: Path,
        api_key: str | None,
    ) -> None:
        if options.has_kv_store:
            socket = kv_place.socket_path(instance.folder)
            options = msgspec.structs.replace(options, kv_store=str(socket))
        self._options = options
        self._spec = service_of(options)
        self._instance = instance
        self._models = models
        self._root = root
        self._env = {**env, "PYTHONPATH": str(root)}
        self._api_key = api_key
        self._supervisor = Supervisor(output.note)
        self._bus: NatsBus | None = None
        self._nats: Kept | None = None

    @property
    def url(self) -> str:
        """Where clients reach the gateway."""
        name = "127.0.0.1" if self._options.host in {"0.0.0.0", "::"} else self._options.host  # noqa: S104 -- compared, not bound
        return f"http://{name}:{self._options.port}"

    async def run(self) -> int:
        """Start everything, serve until Ctrl-C, stop everything; return the exit code. Raises `UserError` where it cannot start."""
        self._check()
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._asked_to_stop, stop)
        try:
            async with asyncio.TaskGroup() as group:
                starting = group.create_task(self._start(group), name="start")
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
        machine.check_disk(self._instance.folder)
        machine.check_port("127.0.0.1", options.nats_port, what="NATS", option="--nats-port")
        machine.check_port(options.host, options.port, what="HTTP", option="--port")
        if options.tracer:
            machine.check_port(
                "127.0.0.1", options.metrics_port, what="metrics", option="--metrics-port"
            )
        if options.backend == "vllm" and not must_be_made(options.model, self._models):
            check_memory(
                self._spec,
                engines=options.engines,
                weight_bytes=resolve(options.model, self._models).weight_bytes,
                available_bytes=machine.available_memory_bytes(),
            )

    async def _start(self, group: asyncio.TaskGroup) -> None:
        options = self._options
        secrets = self._instance.write_nats(port=options.nats_port)
        host_port, operator_port, *gateway_ports = machine.free_ports(2 + options.gateways)
        # The host first: the engines' imports are what all wait for.
        host = host_plan(
            options,
            folder=self._instance.folder,
            models=self._models,
            secrets=secrets,
            metrics_port=host_port,
        )
        kept = {"host": self._keep(group, host)}
        # Only now, here and below: half a second of imports, for which the host need not wait.
        from services.console.fleet.ready import nats_greets  # noqa: PLC0415

        self._nats = self._supervisor.add(group, self._nats_launcher(), stop_s=NATS_STOP_S)
        await nats_greets(options.nats_port)
        plans = [
            operator_plan(options, secrets=secrets, metrics_port=operator_port),
            *gateway_plans(options, secrets=secrets, metrics_ports=gateway_ports),
            *tracer_plans(options, secrets=secrets),
            *([self._kv_plan(secrets)] if options.has_kv_store else []),
        ]
        kept |= {plan.name: self._keep(group, plan) for plan in plans}
        scrape = scrape_config(
            (host, *plans), rules=self._root / RULES, engines=self._instance.engine_pages
        )
        self._instance.write_scrape(scrape)
        await self._serve(group, kept)

    async def _serve(self, group: asyncio.TaskGroup, kept: Mapping[str, Kept]) -> None:
        """Declare the service, and return when it has answered."""
        from services.console.fleet.declare import declare  # noqa: PLC0415
        from services.console.fleet.ready import gateway_ready  # noqa: PLC0415
        from services.console.fleet.watch import FleetWatch, Parts  # noqa: PLC0415
        from shared.declared import Declared  # noqa: PLC0415
        from shared.natsbus import NatsBus  # noqa: PLC0415
        from shared.records import Records  # noqa: PLC0415

        options = self._options
        tracers = [kept["tracer"]] if "tracer" in kept else []
        watch = FleetWatch(
            self._spec.name,
            engines=options.engines,
            gateways=options.gateways,
            parts=Parts(host=kept["host"], operator=kept["operator"], tracers=tracers),
            logs=self._instance.logs,
            say=output.note,
        )
        address = NatsSettings(
            url=f"nats://127.0.0.1:{options.nats_port}",
            user="console",
            password=read_secret(self._instance.folder / "console.password"),
        )
        self._bus = await NatsBus.connect(address, group=group, name="headrace up")
        await watch.follow(self._bus)
        records = await Records.open(self._bus)
        progress = group.create_task(self._show_progress(watch, records), name="progress")
        try:
            async with asyncio.timeout(options.start_timeout_s):
                self._tell(await declare(Declared(records), self._spec, engines=options.engines))
                await watch.ready()
                await gateway_ready(self.url)
        except TimeoutError as error:
            raise UserError(
                f"not ready within {options.start_timeout_s:.0f} s: {watch.what_lacks()}",
                hint=f"look into {self._instance.logs}, or raise --start-timeout",
            ) from error
        finally:
            progress.cancel()
            output.progress_done()
        await self._greet()

    def _tell(self, told: Told) -> None:
        name = self._spec.name
        if not told.is_ours:
            output.note(
                f"{name} was applied earlier and comes up as it was applied; options of engines and model do not count"
            )
        if told.others:
            output.note(
                f"applied earlier, and coming up again: {', '.join(told.others)} (`headrace delete llmservice NAME` ends one)"
            )

    async def _show_progress(self, watch: FleetWatch, records: Records) -> None:
        from shared.messages import StatusRecord  # noqa: PLC0415

        clock = asyncio.get_running_loop().time
        start_s = clock()
        wanted = self._options.engines
        while watch.ready_count < wanted:
            output.progress(
                f"starting: {watch.ready_count} of {wanted} engines ready, {clock() - start_s:.0f} s  {watch.step}"
            )
            await asyncio.sleep(PROGRESS_S)
            with suppress(BusError):  # not there yet
                entry = await records.get(StatusRecord, self._spec.name)
                if entry is not None:
                    watch.on_status(entry.record)
        output.progress_done()

    async def _greet(self) -> None:
        from services.console.fleet.ready import first_answer  # noqa: PLC0415

        model = self._spec.name
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
        output.note(
            f"more or fewer engines: headrace scale {model} --replicas N, up to {self._spec.scaling.max_replicas}"
        )
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
        launcher = ExecLauncher(
            plan.name,
            [sys.executable, "-m", plan.module, *plan.args],
            env={**self._env, **plan.env},
            log=self._instance.log(plan.name),
        )
        return self._supervisor.add(group, launcher, stop_s=plan.stop_s)

    async def _stop(self) -> None:
        output.note("stopping")
        if self._bus is not None:
            await self._bus.close()
        await self._supervisor.stop_all(self._nats)


def _first(errors: BaseExceptionGroup[UserError]) -> UserError:
    """Return the first single error of a group."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, UserError)
    return error
