"""CPU cost of the gateway's OpenAI core: microseconds for each request parsed and each delta rendered, in one process without any I/O.

Each figure is the fastest of many rounds, since other work on the machine only ever adds time. Prints a table and then JSON.

    python bench/openai_core.py [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.support.processes import machine  # noqa: E402 - needs the path above
from services.gateway.openai.answer import AnswerBuilder  # noqa: E402
from services.gateway.openai.chat import parse_chat  # noqa: E402
from services.gateway.openai.completion import parse_completion  # noqa: E402
from services.gateway.openai.limits import RequestLimits  # noqa: E402
from services.gateway.openai.render import ChunkRenderer, PayloadRenderer  # noqa: E402
from shared.ids import RequestId, StreamNo  # noqa: E402
from shared.messages import (  # noqa: E402
    Delta,
    DeltaExtra,
    Finish,
    TokenLogprob,
    TopLogprob,
    Usage,
)

CPU = time.process_time
ROUND_S = 0.02
ROUNDS = 15
ANSWER_TOKENS = 256
LIMITS = RequestLimits()
IDS: dict[str, Any] = {
    "request_id": RequestId("chatcmpl-0123456789abcdef01234567"),
    "created": 1_760_000_000,
}
USAGE = Usage(prompt_tokens=20, completion_tokens=ANSWER_TOKENS)


def chat_body(messages: list[dict[str, Any]], **fields: Any) -> bytes:
    """Return a request as the official client writes it."""
    sampling = {"temperature": 0.7, "max_tokens": 64, "stream": True}
    return json.dumps({"model": "smollm2", "messages": messages, **sampling, **fields}).encode()


def turns(count: int, text: str) -> list[dict[str, Any]]:
    """Return a conversation."""
    return [{"role": ("user", "assistant")[number % 2], "content": text} for number in range(count)]


def tool(number: int) -> dict[str, Any]:
    """Return a tool with a few parameters."""
    properties = {
        name: {"type": "string", "description": "What it is."} for name in ("city", "unit", "when")
    }
    parameters = {"type": "object", "properties": properties, "required": ["city"]}
    return {
        "type": "function",
        "function": {"name": f"tool_{number}", "description": "Do it.", "parameters": parameters},
    }


def delta(text: str, finish: Finish | None = None, extra: DeltaExtra | None = None) -> Delta:
    """Return a delta of one token."""
    return Delta(
        stream=StreamNo(1), seq=0, choice=0, text=text, token_ids=[1], finish=finish, extra=extra
    )


def parse_cases() -> dict[str, Callable[[], object]]:
    """Return what is parsed, by name."""
    short = chat_body(
        [
            {"role": "system", "content": "You are helpful."},
            {"role": "user", "content": "What is the capital of France?"},
        ]
    )
    long_chat = chat_body(turns(40, "Some words of a usual length in a conversation. " * 4))
    with_tools = chat_body(
        turns(3, "What is the weather?"), tools=[tool(number) for number in range(5)]
    )
    large = chat_body(turns(1, "A line of a long document with some words.\n" * 12_000))
    tokens = json.dumps({"model": "smollm2", "prompt": list(range(8192))}).encode()
    return {
        f"parse: short chat, {len(short)} B": lambda: parse_chat(short, LIMITS, seed=1),
        f"parse: 40 turns, {len(long_chat)} B": lambda: parse_chat(long_chat, LIMITS, seed=1),
        f"parse: 5 tools, {len(with_tools)} B": lambda: parse_chat(with_tools, LIMITS, seed=1),
        f"parse: long prompt, {len(large)} B": lambda: parse_chat(large, LIMITS, seed=1),
        f"parse: 8192 token ids, {len(tokens)} B": lambda: parse_completion(tokens, LIMITS, seed=1),
    }


def render_cases() -> dict[str, Callable[[], object]]:
    """Return what is rendered, by name."""
    call = parse_chat(chat_body(turns(1, "hi"), logprobs=True, top_logprobs=5), LIMITS, seed=1)
    plain, accented = delta(" capital"), delta(" Hauptstädte")
    top = [TopLogprob(token=f" w{n}", logprob=-float(n), token_bytes=b" w") for n in range(5)]
    entry = TokenLogprob(token=" w0", logprob=-0.1, token_bytes=b" w0", top=top)  # noqa: S106 - a word of the answer
    with_logprobs = delta(" w0", extra=DeltaExtra(logprobs=[entry]))
    last = delta("", Finish.STOP, DeltaExtra(usage=USAGE))
    events, payloads = ChunkRenderer(call, **IDS), PayloadRenderer(call, **IDS)
    return {
        "render: text": lambda: events.delta(plain, 0),
        "render: text, not ASCII": lambda: events.delta(accented, 0),
        "render: text, NATS payload": lambda: payloads.delta(plain, 0),
        "render: text and 5 alternatives": lambda: events.delta(with_logprobs, 0),
        "render: end of a choice": lambda: events.delta(last, 0),
        "render: renderer and opening": lambda: ChunkRenderer(call, **IDS).opening(),
        f"answer: {ANSWER_TOKENS} deltas and body": lambda: answer(call, plain, last),
    }


def answer(call: Any, plain: Delta, last: Delta) -> bytes:
    """Collect a whole answer."""
    built = AnswerBuilder(call, **IDS)
    for _ in range(ANSWER_TOKENS - 1):
        built.add(plain, 0)
    built.add(last, 0)
    return built.body(USAGE)


def fastest_us(case: Callable[[], object]) -> float:
    """Return the microseconds of CPU that one call takes when little disturbs it."""
    once_s = min(timeit.repeat(case, timer=CPU, number=3, repeat=3)) / 3
    number = max(1, int(ROUND_S / once_s))
    return min(timeit.repeat(case, timer=CPU, number=number, repeat=ROUNDS)) / number * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="no table")
    options = parser.parse_args()
    figures = {
        name: round(fastest_us(case), 2)
        for name, case in {**parse_cases(), **render_cases()}.items()
    }
    if not options.json:
        for name, us in figures.items():
            print(f"{name:<38}{us:>10.2f} µs")
    print(json.dumps({"machine": machine("msgspec"), "us": figures}, indent=2))


if __name__ == "__main__":
    main()
