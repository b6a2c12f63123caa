"""From the options of `headrace up` to a running platform."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from services.console import output
from services.console.fleet.instance import Instance
from services.console.fleet.plan import UpOptions
from services.console.fleet.up import FindModel, Model, Up
from services.console.settings import ConsoleSettings
from shared import machine
from shared.errors import UserError
from shared.models.fetch import check_servable, find_or_fetch


async def up(options: argparse.Namespace, settings: ConsoleSettings, *, root: Path) -> int:
    """Serve until Ctrl-C; return the exit code. Raises `UserError`."""
    wanted = UpOptions(
        engines=options.engines,
        gateways=options.gateways,
        host=options.host,
        port=options.port,
        nats_port=options.nats_port,
        service=options.service,
        model=options.model,
        fake=options.fake_engine,
        upstream=options.upstream,
        kv_cache_bytes=options.kv_cache,
        kv_host_bytes=options.kv_host,
        kv_min_tokens=options.kv_min_tokens,
        max_model_len=options.max_model_len,
        api_keys=options.api_keys,
        tracer=not options.no_tracer,
        otlp=options.otlp,
        trace_policies=options.trace_policies,
        metrics_port=options.metrics_port,
        kv_folders=tuple(options.kv_folder),
        kv_disk_bytes=0 if options.no_kv_store else options.kv_disk,
        engine_args=engine_args(options.engine_arg),
        start_timeout_s=options.start_timeout,
        drain_s=options.drain,
    )
    if wanted.backend == "vllm":
        check_servable(wanted.model, settings.models)
    for file, option, hint in (
        (wanted.api_keys, "--api-keys", "`headrace key new NAME --file FILE` makes one"),
        (wanted.trace_policies, "--trace-policies", "docs/how-to/tracing.md shows one"),
    ):
        machine.check_file(file, option=option, hint=hint)
    platform = Up(
        wanted,
        instance=Instance(settings.platform_folder(options.name)),
        env=settings.environment,
        root=root,
        api_key=settings.key,
    )
    return await platform.run(_finder(wanted, settings))


def engine_args(pairs: list[str]) -> tuple[str, ...]:
    """Return `vllm-max-num-seqs=64` as command line arguments of the engine. Raises `UserError`."""
    args: list[str] = []
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise UserError(
                f"--engine-arg {pair!r} is not KEY=VALUE",
                hint="as --engine-arg vllm-max-num-seqs=64",
            )
        args += [f"--{key}", value]
    return tuple(args)


def service_name(model: str) -> str:
    """Return a model's name as a service's: dots and the like cannot be in a NATS subject (`Qwen2.5-0.5B` → `Qwen2-5-0-5B`)."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", model).strip("-") or "model"


def _finder(options: UpOptions, settings: ConsoleSettings) -> FindModel:
    async def find() -> Model:
        if options.backend != "vllm":
            return Model(name=options.service or options.backend, path=None, weight_bytes=0)
        found = await find_or_fetch(
            options.model, settings.models, env=settings.environment, progress=output.note
        )
        name = options.service or service_name(found.name)
        return Model(name=name, path=found.path, weight_bytes=found.weight_bytes)

    return find
