"""Hostile clients and overload at full size: one gateway and one fake engine on a real NATS server, and what each round costs them.

    python bench/endurance.py [--scale 1.0] [--json] [ROUND...]

Rounds: requests (100,000), disconnects (10,000), unread (eight clients that never read for 60 s), streams (1,000 open at a time) and
overload (ten times the capacity for a minute). `--scale` makes all of them smaller. Memory is that of the gateway process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared.nats_config import MAX_PAYLOAD_BYTES
from tests.support.gateway_process import Site
from tests.support.hostile_clients import (
    CHAT_PATH,
    Peak,
    ask,
    at_once,
    chat_body,
    leave_early,
    rss_mib,
)
from tests.support.http_shell import Wire
from tests.support.nats_server import NatsServer
from tests.support.overload import Kind, overload, summaries

FAST = {
    "max-model-len": 10_000_000,
    "total-blocks": 10_000_000,
    "step-s": 0,
    "prefill-tokens-per-s": 1e9,
}
SLOTS, STEP_S, TOKENS = 8, 0.04, 10
CAPACITY_PER_S = SLOTS / (STEP_S * TOKENS)
OVERLOAD = {"max-streams": SLOTS, "step-s": STEP_S}
STREAMS = {"max-streams": 1024, "step-s": 0.2}

Round = Callable[[Site, float], Awaitable[dict[str, Any]]]


async def many_requests(site: Site, scale: float) -> dict[str, Any]:
    """Short requests, one after the other on 32 connections."""
    count, body = round(100_000 * scale), chat_body(site.service, max_tokens=1)
    bad = 0

    async def worker(requests: int) -> None:
        nonlocal bad
        wire = await Wire.open(site.ports[0])
        for _ in range(requests):
            wire.post(CHAT_PATH, body)
            bad += (await wire.answer()).status != 200
        wire.close()

    await worker(count // 20)
    warm_mib = rss_mib(site.gateways[0].process.pid)
    await at_once(repeat(partial(worker, count // 32), 32), concurrency=32)
    grown_mib = rss_mib(site.gateways[0].process.pid) - warm_mib
    return {"requests": count, "not 200": bad, "growth behind the first 5 % [MiB]": grown_mib}


async def disconnects(site: Site, scale: float) -> dict[str, Any]:
    """Clients that leave: in the middle of the body, at once, after the head, after the first word."""
    count = round(10_000 * scale)
    whole, stream = (
        chat_body(site.service, max_tokens=5000, stream=each) for each in (False, True)
    )
    bodies = (whole, whole, stream, stream)
    jobs = [partial(leave_early, site.ports[0], bodies[n % 4], how=n) for n in range(count)]
    await at_once(jobs, concurrency=20)
    ended = time.monotonic()
    await site.until_figure("open_calls", 0)
    await site.until_figure("in_flight_choices", 0)
    return {"clients": count, "in flight back to 0 within [s]": time.monotonic() - ended}


async def unread(site: Site, scale: float) -> dict[str, Any]:
    """Eight clients that ask for endless streams at full speed, never read, and ask again when they are cut."""
    until, asked = time.monotonic() + 60 * scale, 0
    body = chat_body(site.service, max_tokens=1_000_000, stream=True)

    async def never_reads() -> None:
        nonlocal asked
        while time.monotonic() < until:
            wire = await Wire.open(site.ports[0], receive_bytes=4096)
            wire.stop_reading()
            wire.post(CHAT_PATH, body)
            cut, asked = await site.figure("http_slow_clients_total"), asked + 1
            while time.monotonic() < until:
                await asyncio.sleep(0.2)
                if await site.figure("http_slow_clients_total") >= cut + 1:
                    break
            wire.reset()

    await asyncio.gather(*(never_reads() for _ in range(8)))
    return {"clients": asked, "cut": await site.figure("http_slow_clients_total")}


async def many_streams(site: Site, scale: float) -> dict[str, Any]:
    """Streams that are all open at the same time."""
    count, body = round(1000 * scale), chat_body(site.service, max_tokens=60, stream=True)
    wires = [await Wire.open(site.ports[0]) for _ in range(count)]
    for wire in wires:
        wire.post(CHAT_PATH, body)
    most = 0.0
    while await site.figure("open_streams") and most < count:
        most = max(most, await site.figure("open_streams"))
        await asyncio.sleep(0.1)
    answers = [await wire.answer() for wire in wires]
    for wire in wires:
        wire.close()
    whole = sum(answer.body.endswith(b"data: [DONE]\n\n") for answer in answers)
    return {"streams": count, "open at the same time": most, "whole": whole}


async def ten_times(site: Site, scale: float) -> dict[str, Any]:
    """Ten times the capacity; 4 s for an answer."""
    flood = 10 * CAPACITY_PER_S
    kinds = [
        Kind(name="interactive", priority="interactive", per_s=0.04 * flood),
        Kind(name="default", per_s=0.48 * flood),
        Kind(name="batch", priority="batch", per_s=0.48 * flood),
    ]
    answers = await overload(
        site.ports[0], site.service, kinds, seconds=60 * scale, tokens=TOKENS, timeout_s=4.0
    )
    ended = time.monotonic()
    await site.until_figure("open_calls", 0)
    again = await ask(site.ports[0], chat_body(site.service, max_tokens=TOKENS))
    recovered_s = time.monotonic() - ended
    kinds_got = {name: msgspec.to_builtins(one) for name, one in summaries(answers).items()}
    return {"capacity [1/s]": CAPACITY_PER_S, "answers normally after [s]": recovered_s} | {
        "status afterwards": again.status,
        **kinds_got,
    }


ROUNDS: dict[str, tuple[Round, dict[str, Any]]] = {
    "requests": (many_requests, FAST),
    "disconnects": (disconnects, FAST),
    "unread": (unread, FAST),
    "streams": (many_streams, STREAMS),
    "overload": (ten_times, OVERLOAD),
}


def play(name: str, scale: float) -> dict[str, Any]:
    """Play one round on processes of its own; return its figures."""
    what, engine = ROUNDS[name]
    with tempfile.TemporaryDirectory() as folder:
        server = NatsServer(Path(folder) / "nats", config=f"max_payload: {MAX_PAYLOAD_BYTES}\n")
        server.start()
        try:
            with Site(server, Path(folder)) as site:
                site.add_gateway()
                site.add_engine(*(f"--fake-{key}={value}" for key, value in engine.items()))
                return asyncio.run(_measured(site, what, scale))
        finally:
            server.kill()


async def _measured(site: Site, what: Round, scale: float) -> dict[str, Any]:
    await site.ready()
    peak = Peak(site.gateways[0].process.pid)
    began = time.monotonic()
    async with peak.watched():
        figures = await what(site, scale)
    await site.until_figure("open_calls", 0)
    return {
        **figures,
        "took [s]": time.monotonic() - began,
        "memory before [MiB]": peak.before_mib,
        "memory at most [MiB]": peak.most_mib,
        "memory after [MiB]": rss_mib(site.gateways[0].process.pid),
        "in flight after": await site.figure("in_flight_choices"),
    }


def main() -> None:
    """Play the rounds; print JSON or a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rounds", nargs="*", metavar="ROUND", help=", ".join(ROUNDS))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    figures = {name: play(name, chosen.scale) for name in chosen.rounds or ROUNDS}
    if chosen.json:
        print(json.dumps(figures, indent=1))
        return
    for name, values in figures.items():
        print(f"\n{name}")
        for what, value in values.items():
            if isinstance(value, dict):
                line = "  ".join(f"{key} {_shown(one)}" for key, one in value.items())
                print(f"  {line}")
            else:
                print(f"  {what:36} {_shown(value)}")


def _shown(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
