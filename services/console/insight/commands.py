"""The four commands: from options to what the terminal shows, and the exit code."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import msgspec

from services.console import output
from services.console.connection import on_bus
from services.console.fleet.instance import BusAddress
from services.console.insight import tracing
from services.console.insight.blame_table import table
from services.console.insight.desk import KEPT_S, Desk
from services.console.insight.found import Found, told
from services.console.insight.keyboard import keys
from services.console.insight.lines import HEAD, Wanted, log_line
from services.console.insight.listing import follower, listing, slow_us
from services.console.insight.watching import watch
from services.console.insight.waterfall import Names
from shared.blame import Blame, LedgerWindow, sentences
from shared.blame import blame as explain
from shared.clock import unix_time_s
from shared.quantities import duration
from shared.typedbus import TypedBus


class BlameDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The blame of a service for other programs."""

    service: str
    window_s: float
    blame: Blame
    words: list[str]


Reading = Callable[[Desk, argparse.Namespace], Awaitable[int]]


def run(reading: Reading, options: argparse.Namespace, address: BusAddress) -> int:
    """Connect, carry out one command, and return the exit code: 0 found, 1 nothing found. Raises `HeadraceError`."""

    async def use(bus: TypedBus) -> int:
        return await reading(await Desk.open(bus), options)

    return asyncio.run(on_bus(address, use, name=f"headrace {options.command}"))


async def trace(desk: Desk, options: argparse.Namespace) -> int:
    """`headrace trace ID`."""
    found = await tracing.trace(desk, options.id, token=options.token)
    if options.json:
        output.json_document(tracing.document(found))
    else:
        output.line(tracing.text(found))
    return 0


async def top(desk: Desk, options: argparse.Namespace) -> int:
    """`headrace top`."""
    is_over = asyncio.Event()

    def on_key(key: str) -> None:
        if key in ("q", "Q"):
            is_over.set()

    hint = "" if options.once or not output.is_terminal() else ", q ends"
    with keys(on_key):
        await watch(
            desk,
            output.Frames().show,
            interval_s=None if options.once else options.interval,
            title=f"headrace top {options.name}{hint}",
            is_over=is_over,
        )
    return 0


async def logs(desk: Desk, options: argparse.Namespace) -> int:
    """`headrace logs SERVICE`; with `--follow` without end."""
    live = await follower(desk, options.service) if options.follow else None
    slower_us = round((options.slower_than or 0.0) * 1e6)
    if options.slow:
        slower_us = await slow_us(desk, options.service)
    wanted = Wanted(stage=options.stage or "", slower_us=slower_us)
    past = await listing(desk, options.service, wanted, tail=options.tail)
    if not past:
        output.note(_nothing(options.service, wanted.words, KEPT_S))
    names = {} if options.json else await desk.names()
    if not options.json and (past or live is not None):
        output.line(HEAD)
    for found in past:
        _write(found, wanted, names, as_json=options.json)
    if live is not None:
        desk.bus.on_loss(lambda why: output.note(f"requests may be missing from here on: {why}"))
        live.skip(past)
        async for found in live.requests(wanted):
            _write(found, wanted, names, as_json=options.json)
    return 0 if past else 1


def _write(found: Found, wanted: Wanted, names: Names, *, as_json: bool) -> None:
    if as_json:
        output.json_line(told(found))
    else:
        output.line(log_line(found, wanted, names))


async def blame(desk: Desk, options: argparse.Namespace) -> int:
    """`headrace blame SERVICE`."""
    window = LedgerWindow()
    async for found in desk.requests(since_s=options.window, service=options.service):
        window.add(found.ledger)
    if not window.seen:
        await desk.check_service(options.service)
    names = {} if options.json else await desk.names()
    report = explain(window)
    if options.json:
        output.json_document(
            BlameDocument(
                service=options.service,
                window_s=options.window,
                blame=report,
                words=sentences(report, names),
            )
        )
    elif window.seen:
        output.line(
            table(report, f"{options.service}, last {duration(options.window * 1e6)}", names)
        )
    if not window.seen:
        output.note(_nothing(options.service, "", options.window))
    return 0 if window.seen else 1


def _nothing(service: str, what: str, since_s: float) -> str:
    since = datetime.fromtimestamp(unix_time_s() - since_s, tz=UTC)
    return f"no request of {service} {f'{what} ' if what else ''}ended since {since:%H:%M:%S} UTC ({duration(since_s * 1e6)})"
