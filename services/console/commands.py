"""From parsed options to the code that carries a command out. One function a command."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from pathlib import Path

from services.console import output
from services.console.settings import ConsoleSettings, read_settings
from shared import logs

ROOT = Path(__file__).resolve().parents[2]
"""Folder that holds `services` and `shared`."""

Command = Callable[[argparse.Namespace, ConsoleSettings], int]


def run(options: argparse.Namespace) -> int:
    """Carry out one command and return the exit code."""
    logs.configure(logs.LogSettings(level="error", format="console"), service="console")
    return COMMANDS[options.command](options, read_settings())


def _up(options: argparse.Namespace, settings: ConsoleSettings) -> int:
    from services.console.fleet.command import up  # noqa: PLC0415

    return asyncio.run(up(options, settings, root=ROOT))


def _chat(options: argparse.Namespace, settings: ConsoleSettings) -> int:
    from services.console.chat import chat  # noqa: PLC0415

    talk = chat(
        options.url,
        model=options.model,
        api_key=settings.key,
        system=options.system,
        max_tokens=options.max_tokens,
        temperature=options.temperature,
    )
    return asyncio.run(talk)


def _bench(options: argparse.Namespace, settings: ConsoleSettings) -> int:
    from services.console.loadtest.figures import table  # noqa: PLC0415
    from services.console.loadtest.run import LoadRun  # noqa: PLC0415
    from services.console.loadtest.workload import LoadOptions  # noqa: PLC0415

    load = LoadOptions(
        url=options.url,
        model=options.model,
        api_key=settings.key,
        concurrency=options.concurrency,
        input_tokens=options.input_len,
        output_tokens=options.output_len,
        rate_per_s=options.rate,
        duration_s=options.duration,
        requests=options.requests,
        token_index=options.token_index,
        ignore_eos=not options.no_ignore_eos,
        timeout_s=options.timeout,
        seed=options.seed,
    )
    figures = asyncio.run(LoadRun(load, _bar(load.total_requests, load.duration_s)).figures())
    output.progress_done()
    if options.json:
        output.json_document(figures)
    else:
        output.line(table(figures))
    return 1 if figures.failed else 0


def _bar(total: int | None, duration_s: float | None) -> Callable[[int, int, float], None]:
    def show(ended: int, failed: int, elapsed_s: float) -> None:
        share = ended / total if total else elapsed_s / (duration_s or 1.0)
        filled = min(30, int(30 * share))
        bar = "█" * filled + "░" * (30 - filled)
        output.progress(
            f"{bar} {min(1.0, share):4.0%}  {ended} ended, {failed} failed, {elapsed_s:.0f} s"
        )

    return show


def _status(options: argparse.Namespace, settings: ConsoleSettings) -> int:
    from services.console.fleet.instance import bus_of  # noqa: PLC0415
    from services.console.status import observe, table  # noqa: PLC0415

    picture = asyncio.run(observe(bus_of(settings.platform_folder(options.name))))
    if options.json:
        output.json_document(picture)
    else:
        output.line(table(picture))
    return 0 if picture.is_serving else 1


def _insight(options: argparse.Namespace, settings: ConsoleSettings) -> int:
    from services.console.fleet.instance import bus_of  # noqa: PLC0415
    from services.console.insight import commands as insight  # noqa: PLC0415

    reading = {
        "trace": insight.trace,
        "top": insight.top,
        "logs": insight.logs,
        "blame": insight.blame,
    }[options.command]
    return insight.run(reading, options, bus_of(settings.platform_folder(options.name)))


def _kv(options: argparse.Namespace, settings: ConsoleSettings) -> int:
    from services.console.fleet.instance import bus_of  # noqa: PLC0415
    from services.console.kv import commands as kv  # noqa: PLC0415

    return kv.run(options, bus_of(settings.platform_folder(options.name)))


def _declare(options: argparse.Namespace, settings: ConsoleSettings) -> int:
    from services.console.declare import commands as declare  # noqa: PLC0415

    return declare.run(options, settings)


def _blackbox(options: argparse.Namespace, settings: ConsoleSettings) -> int:
    from services.console.blackbox import find, text  # noqa: PLC0415
    from services.console.fleet.instance import BLACK_BOXES  # noqa: PLC0415
    from services.console.plain import cleaned  # noqa: PLC0415

    shelf = options.folder or settings.platform_folder(options.name) / BLACK_BOXES
    said = find(Path(shelf), options.engine)
    if options.json:
        output.json_document(said)
    else:
        output.line(text(cleaned(said)))
    return 0


def _validate(options: argparse.Namespace, settings: ConsoleSettings) -> int:
    from services.console.modelcheck.validate import validate  # noqa: PLC0415

    return validate(options, settings)


def _logits(options: argparse.Namespace, settings: ConsoleSettings) -> int:
    from services.console.modelcheck.logits import debug  # noqa: PLC0415

    return debug(options, settings)


def _capture(options: argparse.Namespace, settings: ConsoleSettings) -> int:
    from services.console.fleet.instance import bus_of  # noqa: PLC0415
    from services.console.modelcheck.gateways import capture  # noqa: PLC0415

    return capture(options, bus_of(settings.platform_folder(options.name)))


def _model(options: argparse.Namespace, settings: ConsoleSettings) -> int:
    from services.console import models  # noqa: PLC0415

    if options.action == "fetch":
        return models.fetch_command(options.model, settings)
    if options.action == "quantize":
        from services.console.modelcheck.quantize import quantize  # noqa: PLC0415

        return quantize(options, settings)
    return models.list_command(settings, as_json=options.json)


def _key(options: argparse.Namespace, _: ConsoleSettings) -> int:
    from shared.keys import add_key  # noqa: PLC0415

    key = add_key(Path(options.file), tenant=options.tenant)
    output.note(f"key of {options.tenant}, shown only now; {options.file} keeps its hash:")
    output.line(key)
    return 0


def _completion(options: argparse.Namespace, _: ConsoleSettings) -> int:
    from services.console.cli import parser  # noqa: PLC0415 -- it imports this module's caller
    from services.console.completion import script  # noqa: PLC0415

    output.line(script(options.shell, parser()))
    return 0


def _bus_config(options: argparse.Namespace, _: ConsoleSettings) -> int:
    from services.console import bus_config  # noqa: PLC0415

    bus_config.write(
        Path(options.nats),
        bus_config.parse_folders(options.secret),
        host=options.host,
        url=options.url,
    )
    return 0


COMMANDS: dict[str, Command] = {
    "up": _up,
    "chat": _chat,
    "bench": _bench,
    "status": _status,
    "top": _insight,
    "blame": _insight,
    "logs": _insight,
    "trace": _insight,
    "kv": _kv,
    **dict.fromkeys(("apply", "get", "describe", "scale", "delete", "rules", "schema"), _declare),
    "blackbox": _blackbox,
    "validate-model": _validate,
    "debug-logits": _logits,
    "capture": _capture,
    "model": _model,
    "key": _key,
    "completion": _completion,
    "bus-config": _bus_config,
}
