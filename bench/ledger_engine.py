"""What an engine's accounts cost: the same jobs with accounts and without, in turns, in one run.

Parts: what the book takes for a step with 128 streams in it, and for a request from its arrival to its end.
Process: a real engine process with the fake backend at full speed serves a pretend gateway over NATS (`bench/engine_publish.py`), long
answers (2,048 tokens) and short ones (64); CPU of the engine process a token, which is what bounds its throughput.
Real vLLM, if a model is given: tokens per second through the adapter, with our scheduler and with vLLM's own, an engine each.
Engines without accounts have a book that takes nothing and tells nothing. Prints a table, and JSON. Needs nats-server.

    python bench/ledger_engine.py [--seconds 4] [--rounds 5] [--model MODEL_DIRECTORY] [--streams 32] [--tokens 64]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import msgspec  # noqa: E402 - needs the path above

from bench.engine_publish import measure  # noqa: E402
from bench.support.no_book import NoBook  # noqa: E402
from bench.support.processes import machine  # noqa: E402
from services.engine.ports import Job, Piece  # noqa: E402
from services.engine.settings import VllmSettings  # noqa: E402
from services.engine.stepbook import StepBook  # noqa: E402
from services.engine.steps.step import Prefill, Step  # noqa: E402
from shared.ids import RequestId  # noqa: E402
from shared.messages import Priority, Sampling, TokensPrompt  # noqa: E402

STREAMS = 128
SCENES = {"saturated": 2048, "saturated_short": 64}
"""Scenes of `engine_publish`, and the tokens of an answer in them."""
WAYS = {"with": "services.engine", "without": "bench.support.no_book"}
_encode = msgspec.msgpack.Encoder().encode


# --- an engine process


def process(seconds: float, rounds: int) -> dict[str, Any]:
    """Return CPU a token with accounts and without; in pairs, since what else runs on the machine changes."""
    report: dict[str, Any] = {}
    for scene, tokens in SCENES.items():
        pairs = [pair(scene, seconds, number) for number in range(rounds)]
        us = {way: statistics.median(each[way] for each in pairs) for way in WAYS}
        more = statistics.median(each["with"] / each["without"] - 1 for each in pairs)
        report[scene] = {
            "us_a_token": {way: round(value, 3) for way, value in us.items()},
            "percent_more": round(more * 100, 2),
            "us_a_request_more": round(more * us["without"] * tokens, 1),
            "all": [{way: round(value, 3) for way, value in each.items()} for each in pairs],
        }
    return report


def pair(scene: str, seconds: float, number: int) -> dict[str, float]:
    """Return both, the one first that was second before."""
    order = list(WAYS) if number % 2 else list(reversed(WAYS))
    return {
        way: measure(scene, seconds, module=WAYS[way], with_alone=False)["engine_us_per_token"]
        for way in order
    }


# --- parts


def parts() -> dict[str, float]:
    """Return what the book takes by itself."""
    return {
        "step_us": round(best(decode_steps) * 1e6, 2),
        "request_us": round(best(requests) * 1e6, 2),
    }


def best(measure: Any) -> float:
    return min(measure() for _ in range(5))


def decode_steps(count: int = 20_000) -> float:
    """Return the seconds of a decode-only step with many streams in it."""
    book = StepBook()
    fill(book, STREAMS)
    steps = [Step(2 + n, 2.0 + n / 100, 2.01 + n / 100, decodes=STREAMS) for n in range(count)]
    began = time.process_time()
    for step in steps:
        book.feed(step)
    return (time.process_time() - began) / count


def requests(count: int = 5_000) -> float:
    """Return the seconds of a request from its arrival to its end, its step not included; each step has a prompt."""
    book, step_s = StepBook(), decode_steps(5_000)
    fill(book, STREAMS)
    began = time.process_time()
    for number in range(count):
        key, at = f"k{number}", 2.0 + number / 100
        book.open(key, RequestId(key), received_at=at)
        book.enqueue(key, key, at=at)
        step = Step(2 + number, at, at + 0.01, decodes=STREAMS, prefills=[Prefill(key, 100)])
        book.feed(step)
        _encode(book.spent(key, until=at + 0.01, decode_tokens=1))
        over = f"k{number - 64}"
        book.end_choice(over)
        _encode(book.spent(over, until=at + 0.01, decode_tokens=64))
        book.close(over, at=at + 0.01)
        if number % 10 == 9:
            _encode(book.news(at + 0.01))
    return (time.process_time() - began) / count - step_s


def fill(book: StepBook, streams: int) -> None:
    for number in range(streams):
        book.open(f"s{number}", RequestId(f"s{number}"), received_at=1.0)
        book.enqueue(f"s{number}", f"s{number}", at=1.0)
    book.feed(Step(1, 1.0, 1.5, prefills=[Prefill(f"s{n}", 10) for n in range(streams)]))


# --- real vLLM


async def vllm(model: str, streams: int, tokens: int, rounds: int) -> dict[str, Any]:
    """Return tokens a second with our scheduler and with vLLM's own; each in an engine of its own, one after the other."""
    rates: dict[str, list[float]] = {"with": [], "without": []}
    for way, scheduler in (
        ("without", {"scheduler_cls": "vllm.v1.core.sched.scheduler.Scheduler"}),
        ("with", {}),
    ):
        rates[way] = await vllm_rates(model, streams, tokens, rounds, scheduler)
    best_rate = {way: max(each) for way, each in rates.items()}
    return {
        "tokens_per_s": {way: round(rate, 1) for way, rate in best_rate.items()},
        "all": {way: [round(rate, 1) for rate in each] for way, each in rates.items()},
        "percent": round((1 - best_rate["with"] / best_rate["without"]) * 100, 2),
    }


async def vllm_rates(
    model: str, streams: int, tokens: int, rounds: int, extra: dict[str, object]
) -> list[float]:
    """Return the tokens a second of each round."""
    from services.engine.adapters.vllm_engine import VllmEngine  # noqa: PLC0415 - after `preload`

    settings = VllmSettings(
        model=model, max_model_len=1024, max_num_seqs=max(streams, 8), extra_args=extra
    )
    engine = VllmEngine(settings, NoBook() if extra else None)
    waiting: dict[str, asyncio.Future[None]] = {}

    def sink(key: str, piece: Piece) -> None:
        if piece.extra is not None and piece.extra.usage is not None:
            waiting.pop(key).set_result(None)

    async def one(number: int) -> None:
        done = waiting[f"b:{number}"] = asyncio.get_running_loop().create_future()
        prompt = [100 + (number * 7919 + place * 31) % 40_000 for place in range(32)]
        job = Job(
            key=f"b:{number}",
            request=RequestId(f"b{number}"),
            prompt=TokensPrompt(token_ids=prompt),
            sampling=Sampling(seed=number, max_tokens=tokens, ignore_eos=True),
            priority=Priority.DEFAULT,
            trace={},
        )
        await engine.submit(job)
        await done

    rates = []
    await engine.start(sink)
    try:
        for number in range(rounds + 1):
            began = time.perf_counter()
            await asyncio.gather(*(one(number * 1000 + stream) for stream in range(streams)))
            rates.append(streams * tokens / (time.perf_counter() - began))
    finally:
        await engine.stop()
    # The first one warms up.
    return rates[1:]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    asked = parser.parse_args()
    report: dict[str, Any] = {"machine": machine("uvloop", "msgspec"), "parts": parts()}
    report["process"] = process(asked.seconds, asked.rounds)
    if asked.model:
        from services.engine.adapters import vllm_preload  # noqa: PLC0415 - ten seconds, only if asked for

        vllm_preload.preload()
        report["vllm"] = asyncio.run(vllm(asked.model, asked.streams, asked.tokens, asked.rounds))
    for name, figures in report.items():
        if name != "machine":
            print(f"{name:8}{figures}")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
