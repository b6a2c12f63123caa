"""`headrace kv stats|ls|verify|purge`: finds the stores by their heartbeats, asks each, shows what they answer."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import msgspec

from services.console import output
from services.console.connection import on_bus
from services.console.fleet.instance import BusAddress
from services.console.kv import tables
from shared.errors import UserError
from shared.ids import KvStoreId
from shared.messages import (
    HEARTBEAT_S,
    KvListing,
    KvListQuery,
    KvPurge,
    KvPurged,
    KvStats,
    KvStatsQuery,
    KvStoreHeartbeat,
    KvVerified,
    KvVerify,
    Message,
)
from shared.natsbus import NatsBus

LISTEN_S = 2.5 * HEARTBEAT_S
ANSWER_S = 10.0
PROGRESS_S = 0.5

Action = Callable[[NatsBus, argparse.Namespace, list[KvStoreId]], Awaitable[list[Message]]]


def run(options: argparse.Namespace, address: BusAddress) -> int:
    """Carry out an action and return the exit code. Raises `UserError`."""
    if options.action == "purge":
        _check_purge(options)

    async def act(bus: NatsBus) -> list[Message]:
        stores = await _stores(bus, options.store)
        return await ACTIONS[options.action](bus, options, stores)

    answers = asyncio.run(on_bus(address, act, name="headrace kv"))
    if options.json:
        output.json_document([msgspec.to_builtins(answer) for answer in answers])
    broken = any(isinstance(answer, KvVerified) and answer.bad for answer in answers)
    return 1 if broken else 0


def _check_purge(options: argparse.Namespace) -> None:
    is_limited = options.service or options.namespace or options.older_than
    if not is_limited and not options.all:
        raise UserError(
            "purge would delete everything",
            hint="say --all, or which by --service, --namespace, --older-than",
        )
    if is_limited and options.all:
        raise UserError("--all and a choice exclude each other", hint="leave one out")


async def _stores(bus: NatsBus, wanted: str) -> list[KvStoreId]:
    """Return the stores that are alive: all, or the one that is meant. Raises `UserError`."""
    heard: dict[KvStoreId, str] = {}
    is_found = asyncio.Event()

    def on_beat(beat: KvStoreHeartbeat) -> None:
        heard[beat.store] = beat.host
        if beat.store == wanted:
            is_found.set()

    await bus.subscribe(KvStoreHeartbeat, on_beat)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LISTEN_S):
            await is_found.wait()
    found = [store for store, host in sorted(heard.items()) if wanted in ("", store, host)]
    if not found:
        known = ", ".join(heard) or "none"
        raise UserError(
            f"no KV store {wanted} was heard" if wanted else "no KV store was heard",
            hint=f"heard: {known}; `headrace up` starts one unless --no-kv-store",
        )
    return found


async def _ask(
    bus: NatsBus, message: Message, options: argparse.Namespace, text: Callable[[Message], str]
) -> Message:
    answer = await bus.request(message, timeout_s=ANSWER_S)
    if not options.json:
        output.line(text(answer))
    return answer


def _stats_text(answer: Message) -> str:
    assert isinstance(answer, KvStats)
    return tables.stats(answer)


async def _stats(
    bus: NatsBus, options: argparse.Namespace, stores: list[KvStoreId]
) -> list[Message]:
    return [await _ask(bus, KvStatsQuery(store=store), options, _stats_text) for store in stores]


async def _ls(bus: NatsBus, options: argparse.Namespace, stores: list[KvStoreId]) -> list[Message]:
    pages: list[Message] = []
    for store in stores:
        told = await bus.request(KvStatsQuery(store=store), timeout_s=ANSWER_S)
        assert isinstance(told, KvStats)
        names = [n.namespace for n in told.namespaces if n.namespace.startswith(options.namespace)]
        if not names:
            continue
        query = KvListQuery(
            store=store, namespace=names[0], offset=options.offset, limit=options.limit
        )

        def text(answer: Message, name: str = names[0]) -> str:
            assert isinstance(answer, KvListing)
            return tables.listing(name, answer, offset=options.offset)

        pages.append(await _ask(bus, query, options, text))
    if not pages:
        raise UserError("no such namespace holds values", hint="`headrace kv stats` lists them")
    return pages


async def _verify(
    bus: NatsBus, options: argparse.Namespace, stores: list[KvStoreId]
) -> list[Message]:
    ends: list[Message] = []
    for store in stores:
        told = await bus.request(KvVerify(store=store, begin=True), timeout_s=ANSWER_S)
        assert isinstance(told, KvVerified)
        while told.running:
            output.progress(tables.verified(told))
            await asyncio.sleep(PROGRESS_S)
            told = await bus.request(KvVerify(store=store), timeout_s=ANSWER_S)
            assert isinstance(told, KvVerified)
        output.progress_done()
        if not options.json:
            output.line(f"{store}: {tables.verified(told)}")
        ends.append(told)
    return ends


def _purged_text(answer: Message) -> str:
    assert isinstance(answer, KvPurged)
    return tables.purged(answer)


async def _purge(
    bus: NatsBus, options: argparse.Namespace, stores: list[KvStoreId]
) -> list[Message]:
    orders = [
        KvPurge(
            store=store,
            namespace=options.namespace,
            service=options.service,
            older_than_s=options.older_than,
        )
        for store in stores
    ]
    return [await _ask(bus, order, options, _purged_text) for order in orders]


ACTIONS: dict[str, Action] = {"stats": _stats, "ls": _ls, "verify": _verify, "purge": _purge}
