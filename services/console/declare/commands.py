"""What the commands that declare services do, one function each. They return the exit code: 0 it is so, 1 it did not come to be so."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import json
import shutil
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from services.console import output
from services.console.connection import on_bus
from services.console.declare import files, tables
from services.console.fleet.instance import bus_of
from services.console.settings import ConsoleSettings
from shared.clock import wall_time_s
from shared.declared import Applied, Declared, NotSettled, Service
from shared.errors import UserError
from shared.messages import StatusRecord
from shared.models.fingerprint import fingerprint
from shared.models.store import resolve
from shared.natsbus import NatsBus
from shared.records import Records
from shared.spec.model import LLMService
from shared.spec.rules import prometheus_rules
from shared.spec.schema import schema as schema_of
from shared.spec.writing import to_yaml

T = TypeVar("T")

MICROSECONDS = 1_000_000


def run(options: argparse.Namespace, settings: ConsoleSettings) -> int:
    """Carry out one of the commands. Raises `UserError`, `HeadraceError`."""
    return COMMANDS[options.command](options, settings)


def _on_platform(
    options: argparse.Namespace,
    settings: ConsoleSettings,
    use: Callable[[Declared], Awaitable[T]],
) -> T:
    async def act(bus: NatsBus) -> T:
        return await use(await Declared.open(bus))

    address = bus_of(settings.platform_folder(options.platform))
    return asyncio.run(on_bus(address, act, name=f"headrace {options.command}"))


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return "console"


def _now_us() -> int:
    return int(wall_time_s() * MICROSECONDS)


# --- apply


def _apply(options: argparse.Namespace, settings: ConsoleSettings) -> int:
    found = files.read(options.file)
    remark = files.check_expressions(found, shutil.which("promtool"))
    if remark:
        output.note(f"headrace: {remark}")
    marks = {one.spec.name: _fingerprint(one.spec, settings) for one in found}

    async def act(declared: Declared) -> int:
        done: list[Applied] = []
        for one in found:
            mark = marks[one.spec.name]
            if options.dry_run:
                done.append(await declared.preview(one.spec, fingerprint=mark))
            else:
                applied = await declared.apply(
                    one.spec, by=_who(), source=one.source, fingerprint=mark
                )
                done.append(applied)
            if options.output != "json":
                _tell(one.spec, done[-1], dry=options.dry_run)
        if options.output == "json":
            output.json_document([msgspec.to_builtins(applied) for applied in done])
        if options.dry_run or options.no_wait:
            return 0
        return await _wait_for(declared, [one.spec.name for one in found], options.timeout)

    return _on_platform(options, settings, act)


def _fingerprint(spec: LLMService, settings: ConsoleSettings) -> str:
    """Return what the model's files are, where they are here: another machine's are told by its host."""
    if spec.engine.backend != "vllm":
        return ""
    try:
        return fingerprint(resolve(spec.model.name, settings.models).path)
    except (UserError, OSError, ValueError):
        return ""


def _tell(spec: LLMService, applied: Applied, *, dry: bool) -> None:
    would = "would be " if dry else ""
    if applied.is_new:
        output.line(f"{applied.service}: {would}new")
    elif applied.changes:
        output.line(f"{applied.service}: {would}changed")
    else:
        output.line(f"{applied.service}: unchanged")
    for change in () if applied.is_new else applied.changes:
        output.line(f"  {change}")
    for remark in tables.remarks(spec):
        output.note(f"headrace: {applied.service}: {remark}")


async def _wait_for(declared: Declared, names: list[str], timeout_s: float) -> int:
    """Wait until services are as they were declared; tell those that did not come to be so."""
    code = 0
    for name in names:

        def show(status: StatusRecord | None, name: str = name) -> None:
            output.progress(tables.progress(name, status))

        try:
            status = await declared.settled(name, timeout_s=timeout_s, on_change=show)
        except NotSettled as error:
            output.progress_done()
            output.error(str(error), f"`headrace describe llmservice {name}` says more")
            code = 1
        else:
            output.progress_done()
            text = "gone" if status is None else f"Running, {status.ready} of {status.wanted} serve"
            output.line(f"{name}: {text}")
    return code


# --- get, describe


def _get(options: argparse.Namespace, settings: ConsoleSettings) -> int:
    if options.watch:
        return _watch(options, settings)

    async def act(declared: Declared) -> list[Service]:
        return [await declared.get(options.service)] if options.service else await declared.list()

    _show(options, _on_platform(options, settings, act))
    return 0


def _show(options: argparse.Namespace, services: list[Service]) -> None:
    if options.output == "json":
        output.json_document([msgspec.to_builtins(one) for one in services])
    elif options.output == "yaml":
        output.line("---\n".join(to_yaml(one.spec) for one in services).rstrip())
    else:
        wide = options.output == "wide"
        output.line(tables.table(services, now_us=_now_us(), wide=wide))


def _watch(options: argparse.Namespace, settings: ConsoleSettings) -> int:
    async def act(bus: NatsBus) -> int:
        declared = Declared(await Records.open(bus))
        frames = output.Frames()
        changed = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            await declared.follow(changed.set, group=group)
            while True:
                changed.clear()
                services = [
                    one
                    for one in await declared.list()
                    if options.service in {"", one.record.service}
                ]
                wide = options.output == "wide"
                frames.show(tables.table(services, now_us=_now_us(), wide=wide))
                await changed.wait()

    address = bus_of(settings.platform_folder(options.platform))
    return asyncio.run(on_bus(address, act, name="headrace get"))


def _describe(options: argparse.Namespace, settings: ConsoleSettings) -> int:
    async def act(declared: Declared) -> Service:
        return await declared.get(options.service)

    service = _on_platform(options, settings, act)
    if options.output == "json":
        output.json_document(msgspec.to_builtins(service))
    else:
        output.line(tables.description(service, now_us=_now_us()))
    return 0


# --- scale, delete, schema


def _scale(options: argparse.Namespace, settings: ConsoleSettings) -> int:
    async def act(declared: Declared) -> int:
        await declared.scale(options.service, options.replicas, by=_who())
        output.line(f"{options.service}: {options.replicas} replicas wanted")
        if options.no_wait:
            return 0
        return await _wait_scaled(declared, options)

    return _on_platform(options, settings, act)


async def _wait_scaled(declared: Declared, options: argparse.Namespace) -> int:
    """Wait until the operator has seen the number and the fleet has it."""
    try:
        async with asyncio.timeout(options.timeout):
            while True:
                status = (await declared.get(options.service)).status
                if status is not None and status.wanted == options.replicas:
                    return await _wait_for(declared, [options.service], options.timeout)
                await asyncio.sleep(0.1)
    except TimeoutError:
        output.error(f"no operator took it within {options.timeout:g} s", "does one run?")
        return 1


def _delete(options: argparse.Namespace, settings: ConsoleSettings) -> int:
    async def act(declared: Declared) -> int:
        await declared.delete(options.service, by=_who())
        if options.no_wait:
            output.line(f"{options.service}: draining")
            return 0
        return await _wait_for(declared, [options.service], options.timeout)

    return _on_platform(options, settings, act)


def _rules(options: argparse.Namespace, settings: ConsoleSettings) -> int:
    if options.file:
        specs = [one.spec for one in files.read(options.file)]
    else:

        async def act(declared: Declared) -> list[LLMService]:
            return [one.spec for one in await declared.list()]

        specs = _on_platform(options, settings, act)
    output.line(prometheus_rules(specs).rstrip())
    return 0


def _schema(_: argparse.Namespace, __: ConsoleSettings) -> int:
    output.line(json.dumps(schema_of(), indent=2, ensure_ascii=False))
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace, ConsoleSettings], int]] = {
    "apply": _apply,
    "get": _get,
    "describe": _describe,
    "scale": _scale,
    "delete": _delete,
    "rules": _rules,
    "schema": _schema,
}
