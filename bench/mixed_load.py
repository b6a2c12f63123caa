"""What a mixed load does to short requests: 90% short prompts and 10% long ones, from a pool that holds little more than one long one.

Stock is vLLM's own scheduler; ours promises blocks by class and length and shares out the steps (`services/engine/reserve.py`); `lanes`
is ours without the share of steps. All have the same model, pool, budget of a step and arrivals, each an engine of its own; one works at
a time, in turns. Arrivals are a Poisson process at `--load` of what stock computes of such a mix when all of it is there at once.

    python bench/mixed_load.py MODEL_DIRECTORY [--short 128] [--long 6000] [--requests 60] [--rounds 2]

With `--scale 4` all token counts are a fourth: prompts, context, the budget of a step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.support.processes import machine  # noqa: E402 - needs the path above
from services.engine.adapters import vllm_preload  # noqa: E402
from services.engine.ports import Job, Piece  # noqa: E402
from services.engine.reserve_plan import ReserveSettings  # noqa: E402
from services.engine.settings import VllmSettings  # noqa: E402
from shared.ids import RequestId  # noqa: E402
from shared.messages import Priority, Sampling, TokensPrompt  # noqa: E402

LONG_PART = 10
"""One request in so many is long."""
BLOCK = 32
"""Tokens in a block: the least that CPU attention takes."""
BLOCK_BYTES = 1_474_560
"""Of SmolLM2-135M in float32."""
POOL = 1.3
"""Pool in contexts."""
STOCK = "vllm.v1.core.sched.scheduler.Scheduler"
"""What vLLM takes on the CPU platform."""


class Watched:
    """An engine, and the times of what it says."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self._times: dict[str, list[float]] = {}
        self._over: dict[str, asyncio.Future[None]] = {}
        self._number = 0

    def sink(self, key: str, piece: Piece) -> None:
        """Note when tokens came."""
        now = time.monotonic()
        self._times[key] += [now] * len(piece.token_ids)
        if piece.extra is not None and piece.extra.usage is not None:
            self._over.pop(key).set_result(None)

    async def ask(self, prompt: list[int], tokens: int) -> list[float]:
        """Return when each token came, since now."""
        self._number += 1
        key = f"bench:{self._number}"
        self._times[key] = []
        over = self._over[key] = asyncio.get_running_loop().create_future()
        asked_at = time.monotonic()
        await self.engine.submit(
            Job(
                key=key,
                request=RequestId(key),
                prompt=TokensPrompt(token_ids=prompt),
                sampling=Sampling(temperature=0.0, seed=1, max_tokens=tokens, ignore_eos=True),
                priority=Priority.DEFAULT,
                trace={},
            )
        )
        await over
        return [at - asked_at for at in self._times.pop(key)]


class Mix:
    """The requests of one round: prompts, and when each comes in units of the mean pause."""

    def __init__(self, options: argparse.Namespace, seed: int) -> None:
        draw = random.Random(seed)
        places = set(range(LONG_PART // 2, options.requests, LONG_PART))
        self.prompts = [
            [
                draw.randrange(1000, 40_000)
                for _ in range(options.long if place in places else options.short)
            ]
            for place in range(options.requests)
        ]
        self.is_long = [place in places for place in range(options.requests)]
        self.pauses = [draw.expovariate(1.0) for _ in range(options.requests)]

    async def run(self, engine: Watched, tokens: int, pause_s: float) -> dict[str, Any]:
        """Return the times of all requests, and what the engine computed in a second."""
        begun_at = time.monotonic()

        async def later(place: int, at_s: float) -> list[float]:
            await asyncio.sleep(begun_at + at_s - time.monotonic())
            return await engine.ask(self.prompts[place], tokens)

        at_s, asked = 0.0, []
        for place, pause in enumerate(self.pauses):
            asked.append(later(place, at_s))
            at_s += pause * pause_s
        times = await asyncio.gather(*asked)
        whole_s = time.monotonic() - begun_at
        count = sum(map(len, self.prompts)) + tokens * len(self.prompts)
        return {"times": times, "tokens_per_s": count / whole_s}


def settings_of(options: argparse.Namespace, way: str) -> VllmSettings:
    """Return the settings of one way."""
    context = options.long + 16 * BLOCK
    return VllmSettings(
        model=str(options.model),
        dtype="float32",
        max_model_len=context,
        kv_cache_bytes=int(POOL * context / BLOCK) * BLOCK_BYTES,
        max_num_seqs=64,
        max_num_batched_tokens=options.budget,
        enforce_eager=True,
        reserve=ReserveSettings(
            enabled=way != "stock",
            short_tokens=options.short + options.tokens,
            long_chunk_tokens=0 if way == "lanes" else options.long_chunk,
        ),
        extra_args={"block_size": BLOCK, "enable_prefix_caching": True}
        | ({"scheduler_cls": STOCK} if way == "stock" else {}),
    )


def figures(mixes: list[Mix], results: list[dict[str, Any]]) -> dict[str, float]:
    """Return what one way did to the requests of all rounds."""
    short, long, pauses = [], [], []
    for mix, result in zip(mixes, results, strict=True):
        for is_long, times in zip(mix.is_long, result["times"], strict=True):
            (long if is_long else short).append(times[0])
            pauses += [] if is_long else [b - a for a, b in pairwise(times)]
    cuts = statistics.quantiles(short, n=20)
    between = statistics.quantiles(pauses, n=100)
    return {
        "short_p50_s": statistics.median(short),
        "short_p95_s": cuts[-1],
        "short_deviation_s": statistics.pstdev(short),
        "long_p50_s": statistics.median(long),
        "long_max_s": max(long),
        "between_tokens_mean_s": statistics.fmean(pauses),
        "between_tokens_p99_s": between[-1],
        "tokens_per_s": statistics.fmean(each["tokens_per_s"] for each in results),
    }


async def measure(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Run all ways in turns."""
    from services.engine.adapters.vllm_engine import VllmEngine  # noqa: PLC0415 - after `preload`

    engines: dict[str, Watched] = {}
    for way in options.ways:
        engine = VllmEngine(settings_of(options, way))
        engines[way] = Watched(engine)
        await engine.start(engines[way].sink)
    try:
        warm = Mix(options, 0)
        rate = (await warm.run(engines[options.ways[0]], options.tokens, 0.0))["tokens_per_s"]
        mean = sum(map(len, warm.prompts)) / len(warm.prompts) + options.tokens
        for way in options.ways[1:]:
            await engines[way].ask(warm.prompts[0], options.tokens)
        pause_s = mean / rate / options.load
        print(f"one request in {pause_s:.2f} s", file=sys.stderr)
        mixes = [Mix(options, 1 + number) for number in range(options.rounds)]
        results: dict[str, list[dict[str, Any]]] = {way: [] for way in options.ways}
        for number, mix in enumerate(mixes):
            ways = options.ways if number % 2 == 0 else options.ways[::-1]
            for way in ways:
                results[way].append(await mix.run(engines[way], options.tokens, pause_s))
        return {way: figures(mixes, results[way]) for way in engines}
    finally:
        for each in engines.values():
            await each.engine.stop()


def table(found: dict[str, dict[str, float]]) -> str:
    """Return the figures as a table."""
    names = list(next(iter(found.values())))
    lines = ["| | " + " | ".join(found) + " |", "|---" * (len(found) + 1) + "|"]
    lines += [
        f"| {name} | " + " | ".join(f"{each[name]:.3g}" for each in found.values()) + " |"
        for name in names
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--short", type=int, default=128)
    parser.add_argument("--long", type=int, default=6000)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--budget", type=int, default=2048)
    parser.add_argument("--long-chunk", type=int)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--ways", nargs="+", default=["stock", "ours", "lanes"])
    options = parser.parse_args()
    for name in ("short", "long", "budget"):
        setattr(options, name, getattr(options, name) // options.scale)
    vllm_preload.preload()
    found = asyncio.run(measure(options))
    asked = {name: value for name, value in vars(options).items() if name != "model"}
    print(json.dumps({"machine": machine(), "asked": asked, "figures": found}, indent=1))
    print(table(found), file=sys.stderr)


if __name__ == "__main__":
    main()
