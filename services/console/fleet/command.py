"""From the options of `headrace up` to a running platform."""

from __future__ import annotations

import argparse
from pathlib import Path

from services.console.engine_args import engine_settings
from services.console.fleet.instance import Instance
from services.console.fleet.plan import UpOptions
from services.console.fleet.up import Up
from services.console.settings import ConsoleSettings
from shared import machine
from shared.models.fetch import RECIPES, check_servable


async def up(options: argparse.Namespace, settings: ConsoleSettings, *, root: Path) -> int:
    """Serve until Ctrl-C; return the exit code. Raises `UserError`."""
    wanted = UpOptions(
        engines=options.engines,
        gateways=options.gateways,
        host=options.host,
        port=options.port,
        nats_port=options.nats_port,
        service=options.service,
        model=model_path(options.model, settings.models),
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
        engine_settings=engine_settings(options.engine_arg),
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
        models=settings.models,
        env=settings.environment,
        root=root,
        api_key=settings.key,
    )
    return await platform.run()


def model_path(name_or_path: str, models: Path) -> str:
    """Return a model's directory as any process finds it; a name in the store, or of what can be made, stays one."""
    is_name = "/" not in name_or_path and name_or_path not in {"", ".", ".."}
    if is_name and (name_or_path in RECIPES or (models / name_or_path).is_dir()):
        return name_or_path
    directory = Path(name_or_path).expanduser().absolute()
    return str(directory) if name_or_path and directory.exists() else name_or_path
