"""What the vLLM adapter costs: the same jobs through it and through `AsyncLLM.generate`, in one process, on one core, in turns.

Tokens per second of both, and CPU of this process (the front: detokenizing and what is above it) for each token.
Prompts are given as tokens, so that both begin at the same place. Prints JSON.

    python bench/vllm_adapter.py MODEL_DIRECTORY [--streams 32] [--tokens 64] [--rounds 4]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.support.processes import machine  # noqa: E402 - needs the path above
from services.engine.adapters import vllm_preload  # noqa: E402
from services.engine.ports import Job, Piece  # noqa: E402
from services.engine.settings import VllmSettings  # noqa: E402
from shared.ids import RequestId  # noqa: E402
from shared.messages import Priority, Sampling, TokensPrompt  # noqa: E402

PROMPT_TOKENS = 32


class Adapter:
    """Jobs through the engine port."""

    def __init__(self, engine) -> None:
        self._engine = engine
        self._waiting: dict[str, asyncio.Future[int]] = {}
        self._counts: dict[str, int] = {}

    def sink(self, key: str, piece: Piece) -> None:
        self._counts[key] += len(piece.token_ids)
        if piece.extra is not None and piece.extra.usage is not None:
            self._waiting.pop(key).set_result(self._counts.pop(key))

    async def run(self, number: int, prompt: list[int], tokens: int) -> int:
        """Return how many tokens came."""
        key = f"bench:{number}"
        self._counts[key] = 0
        done = self._waiting[key] = asyncio.get_running_loop().create_future()
        await self._engine.submit(
            Job(
                key=key,
                request=RequestId(key),
                prompt=TokensPrompt(token_ids=prompt),
                sampling=Sampling(seed=number, max_tokens=tokens, ignore_eos=True),
                priority=Priority.DEFAULT,
                trace={},
            )
        )
        return await done


class Bare:
    """Jobs through vLLM's own way in."""

    def __init__(self, llm) -> None:
        self._llm = llm

    async def run(self, number: int, prompt: list[int], tokens: int) -> int:
        """Return how many tokens came."""
        from vllm import SamplingParams  # noqa: PLC0415 - after `preload`
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

        params = SamplingParams(
            seed=number, max_tokens=tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA
        )
        count = 0
        async for output in self._llm.generate(
            {"type": "token", "prompt_token_ids": prompt}, params, f"bare:{number}"
        ):
            count += len(output.outputs[0].token_ids)
        return count


Run = Callable[[int, list[int], int], Awaitable[int]]


async def measure(run: Run, streams: int, tokens: int, round_number: int) -> dict[str, float]:
    """Run the streams of one round; every round has prompts of its own, so that nothing is cached."""
    rng = random.Random(round_number)
    prompts = [[rng.randrange(100, 40_000) for _ in range(PROMPT_TOKENS)] for _ in range(streams)]
    cpu_s, began = time.process_time(), time.perf_counter()
    counts = await asyncio.gather(
        *(
            run(round_number * 10_000 + index, prompt, tokens)
            for index, prompt in enumerate(prompts)
        )
    )
    total = sum(counts)
    return {
        "tokens_per_s": total / (time.perf_counter() - began),
        "front_us_a_token": (time.process_time() - cpu_s) / total * 1e6,
    }


async def bench(model: str, streams: int, tokens: int, rounds: int) -> dict[str, object]:
    """Return the figures of both ways."""
    from services.engine.adapters.vllm_engine import VllmEngine  # noqa: PLC0415 - after `preload`

    settings = VllmSettings(
        model=model, max_model_len=1024, max_num_seqs=max(streams, 8), enforce_eager=True
    )
    engine = VllmEngine(settings)
    adapter = Adapter(engine)
    ways: dict[str, list[dict[str, float]]] = {"adapter": [], "bare": []}
    await engine.start(adapter.sink)
    try:
        runs: dict[str, Run] = {"adapter": adapter.run, "bare": Bare(engine._llm).run}  # noqa: SLF001 - what it drives
        await measure(adapter.run, streams, 8, 0)
        for number in range(1, rounds + 1):
            order = ("adapter", "bare") if number % 2 else ("bare", "adapter")
            for place, way in enumerate(order):
                ways[way].append(await measure(runs[way], streams, tokens, 2 * number + place))
    finally:
        await engine.stop()
    return {
        "machine": machine(),
        "streams": streams,
        "tokens": tokens,
        **{way: summary(each) for way, each in ways.items()},
    }


def summary(rounds: list[dict[str, float]]) -> dict[str, object]:
    """Return the median and all values of each figure."""
    return {
        name: {
            "median": round(statistics.median(each[name] for each in rounds), 1),
            "all": [round(each[name], 1) for each in rounds],
        }
        for name in rounds[0]
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=4)
    asked = parser.parse_args()
    vllm_preload.preload()
    print(
        json.dumps(
            asyncio.run(bench(asked.model, asked.streams, asked.tokens, asked.rounds)), indent=1
        )
    )
