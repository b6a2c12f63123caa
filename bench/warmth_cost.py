"""What warmth costs where it is computed: chains and routes at the gateway, books at the engine; and how piece sizes compare.

CPU time, the best of several rounds on one core. Prints a table to stderr and JSON to stdout.

    python bench/warmth_cost.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, repeat, takewhile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import msgspec  # noqa: E402 - needs the path above
from xxhash import xxh3_64_intdigest  # noqa: E402

from bench.support.processes import machine  # noqa: E402
from services.engine.warmth.blocks import prompt_blocks  # noqa: E402
from services.engine.warmth.map import BlockMap  # noqa: E402
from services.engine.warmth.pieces import PieceBook  # noqa: E402
from services.gateway.routing import RouteFacts, Router, RoutingSettings  # noqa: E402
from shared.codec import encode  # noqa: E402
from shared.ids import EngineId, GatewayId, ServiceName, StreamNo  # noqa: E402
from shared.messages import (  # noqa: E402
    WARM_L1,
    Chain,
    ChatPrompt,
    Delta,
    EngineHeartbeat,
    EngineState,
    TokenBatch,
    Warmth,
    WarmthWhole,
)
from shared.prefixes import ENDS, chain_of, packed, salt_of, unpacked  # noqa: E402

SIZES = (300, 1_000, 30_000, 900_000)
ENGINES = 8
SERVICE = ServiceName("m")
SALT = salt_of("tenant", SERVICE)
LONGEST = 4 << 20


def best_us(act: Callable[[], object], *, rounds: int, least_s: float = 0.05) -> float:
    """Return the least CPU time of a call, in µs."""
    best, count = float("inf"), 1
    for _ in range(rounds):
        while True:
            began = time.process_time()
            for _ in range(count):
                act()
            took = time.process_time() - began
            if took >= least_s:
                break
            count *= 2
        best = min(best, took / count)
    return best * 1e6


def chat(size: int, seed: int = 0) -> ChatPrompt:
    """Return a conversation of about this size."""
    text = "".join(random.Random(seed).choices("abcdefgh ijklmno", k=size - 40))
    return ChatPrompt(messages_json=msgspec.json.encode([{"role": "user", "content": text}]))


def facts(chain: Chain | None, size: int) -> RouteFacts:
    """Return what the router is asked."""
    pieces = () if chain is None else unpacked(chain.hashes)
    return RouteFacts(
        service=SERVICE,
        work_tokens=size // 4 + 512,
        chain=chain,
        pieces=pieces,
        prompt_bytes=size,
    )


def desk(pieces: Sequence[int], warm: int) -> tuple[Router, list[EngineHeartbeat]]:
    """Return a router that knows eight engines, of which some hold the pieces, and a usual number of others."""
    router, beats = Router(RoutingSettings(), seed=1), []
    others = random.Random(1)
    for number in range(ENGINES):
        engine = EngineId(f"e{number}")
        beat = EngineHeartbeat(
            engine=engine,
            service=SERVICE,
            beat=1,
            state=EngineState.READY,
            backend="vllm",
            max_model_len=1 << 20,
            max_streams=128,
            outstanding_tokens=number * 5000,
        )
        beats.append(beat)
        router.book.account(engine).observe(beat, now=0.0)
        router.warmth.beat(engine, 0)
        held = [others.getrandbits(64) for _ in range(8000)] + (
            list(pieces) if number < warm else []
        )
        router.warmth.hear(
            Warmth(
                service=SERVICE,
                engine=engine,
                seq=1,
                hashes=packed(held),
                tiers=bytes([WARM_L1]) * len(held),
            )
        )
    return router, beats


def gateway_costs(rounds: int) -> list[dict[str, float]]:
    """Return what a request of each size costs at a gateway."""
    rows = []
    for size in SIZES:
        prompt = chat(size)
        chain = chain_of(prompt, SALT)
        pieces = unpacked(chain.hashes)
        row = {
            "prompt_bytes": float(size),
            "pieces": float(len(pieces)),
            "chain_us": best_us(lambda p=prompt: chain_of(p, SALT), rounds=rounds),
        }
        for name, known, warm in (("no", None, 0), ("cold", chain, 0), ("warm", chain, ENGINES)):
            router, beats = desk(pieces, warm)
            asked = facts(known, size)
            row[f"route_{name}_us"] = best_us(
                lambda r=router, b=beats, a=asked: r.choose(b, a, now=100.0), rounds=rounds
            )
        rows.append(row)
    return rows


def engine_costs(rounds: int) -> list[dict[str, float]]:
    """Return what a prompt costs an engine's book, and how large what it tells is."""
    rows = []
    for size in SIZES:
        chains = [chain_of(chat(size, seed), SALT) for seed in range(8)]
        tokens = size // 4
        told = [
            prompt_blocks(
                "r",
                tokens=tokens,
                block_tokens=16,
                hashes=[seed << 32 | block for block in range(tokens // 16)],
            )
            for seed in range(8)
        ]
        pieces = PieceBook(32_768)
        blocks = BlockMap(pieces)

        def act(chains=chains, told=told, blocks=blocks) -> None:
            for chain, prompt in zip(chains, told, strict=True):
                if prompt is not None:
                    blocks.prompt(chain, prompt)

        act()
        hashes, tiers = pieces.news(4096)
        news = Warmth(service=SERVICE, engine=EngineId("e1"), seq=1, hashes=hashes, tiers=tiers)
        rows.append(
            {
                "prompt_bytes": float(size),
                "prompt_us": best_us(act, rounds=rounds) / 8,
                "told_bytes": len(encode(news)) / 8,
            }
        )
    return rows


def piece_schemes(rounds: int) -> list[dict[str, object]]:
    """Return, for each way to cut, what a long prompt costs, and how much of a common beginning it overlooks on average."""
    even = {
        str(size): list(takewhile(LONGEST.__gt__, accumulate(repeat(size))))
        for size in (64, 256, 1024, 4096)
    }
    schemes = {**even, "growing": [end for end in ENDS if end < LONGEST]}
    draw = random.Random(7)
    # Common beginnings from a system prompt to a book, evenly over the orders of magnitude.
    commons = [int(10 ** draw.uniform(2.5, 5.95)) for _ in range(4000)]
    text = random.Random(1).randbytes(900_000)
    rows: list[dict[str, object]] = []
    for name, ends in schemes.items():

        def cut(ends=ends, size=900_000) -> int:
            seed, start = 1, 0
            for end in ends[: bisect_right(ends, size)]:
                seed = xxh3_64_intdigest(text[start:end], seed)
                start = end
            return seed

        overlooked = [(size - ([0, *ends][bisect_right(ends, size)])) / size for size in commons]
        rows.append(
            {
                "pieces of": name,
                "pieces at 900 KB": bisect_right(ends, 900_000),
                "us at 1 KB": round(best_us(lambda c=cut: c(size=1000), rounds=rounds), 2),
                "us at 900 KB": round(best_us(cut, rounds=rounds), 1),
                "overlooked": round(sum(overlooked) / len(overlooked), 4),
                "overlooked below 2 KB": round(
                    sum(o for o, size in zip(overlooked, commons, strict=True) if size < 2048)
                    / sum(1 for size in commons if size < 2048),
                    4,
                ),
            }
        )
    return rows


def sizes() -> dict[str, float]:
    """Return bytes on the bus: a token of an answer, the whole of a full engine."""
    deltas = [Delta(StreamNo(100_000 + n), 500, 0, " word", [12_345]) for n in range(2)]
    batch = [
        len(encode(TokenBatch(gateway=GatewayId("g" * 17), engine=EngineId("e" * 17), deltas=part)))
        for part in (deltas[:1], deltas)
    ]
    whole = WarmthWhole(
        engine=EngineId("e" * 17), seq=1, hashes=bytes(8 * 32_768), tiers=bytes(32_768)
    )
    return {
        "answer_token_alone": batch[0],
        "answer_token_more": batch[1] - batch[0],
        "whole": len(encode(whole)),
    }


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    report = {
        "machine": machine("msgspec", "xxhash"),
        "gateway": gateway_costs(rounds),
        "engine": engine_costs(rounds),
        "pieces": piece_schemes(rounds),
        "bytes": sizes(),
    }
    for part in ("gateway", "engine", "pieces"):
        for row in report[part]:  # type: ignore[union-attr]
            shown = [f"{k} {round(v, 2) if isinstance(v, float) else v}" for k, v in row.items()]
            sys.stderr.write(f"{part:8} {', '.join(shown)}\n")
    sys.stderr.write(f"bytes    {report['bytes']}\n")
    sys.stdout.write(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
