"""What the black box costs an engine: µs of CPU for one step's record and of the look once a second, in a file of this folder's disk.

    python bench/blackbox.py [--folder DIR]

Prints JSON. The promise is 5 µs a step at most; nothing of it is on a token's path.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import asyncio  # noqa: E402 - needs the path above

from bench.support.processes import machine  # noqa: E402
from services.engine.adapters.box_file import BoxFile  # noqa: E402
from services.engine.blackbox import Recorder  # noqa: E402
from services.engine.steps.step import Prefill, Step  # noqa: E402
from shared.blackbox.layout import Identity, Request  # noqa: E402
from shared.ids import EngineId, RequestId, ServiceName  # noqa: E402
from shared.messages import EngineHeartbeat, EngineState  # noqa: E402

ROUNDS = 20
STEPS = 5_000
LOOKS = 10
REQUESTS = 256


def beat() -> EngineHeartbeat:
    """Return a heartbeat of a busy engine."""
    return EngineHeartbeat(
        engine=EngineId("e1"),
        service=ServiceName("m"),
        beat=1,
        state=EngineState.READY,
        backend="vllm",
        running=REQUESTS,
        free_blocks=1000,
        total_blocks=16_384,
        step=1_000_000,
    )


def requests() -> list[Request]:
    """Return what an engine with many requests under way tells."""
    return [
        Request(
            request=RequestId(f"chatcmpl-{number:024}"),
            stage="decode",
            prompt_tokens=1000,
            tokens=number,
            kv_blocks=70,
        )
        for number in range(REQUESTS)
    ]


def us_each(call: Callable[[], object], count: int) -> list[float]:
    """Return µs of CPU a call, once for each round: other work on the machine does not count."""
    figures = []
    for _ in range(ROUNDS):
        start_s = time.process_time()
        for _ in range(count):
            call()
        figures.append((time.process_time() - start_s) / count * 1e6)
    return figures


async def measure(folder: Path) -> dict[str, float]:
    """Return the figures."""
    box, writer = BoxFile.create(folder, Identity(engine=EngineId("e1"), service=ServiceName("m")))
    recorder = Recorder(writer, heartbeat=beat, requests=requests, devices=lambda: None)
    now = time.monotonic()
    plain = Step(7, now, now + 0.01, decodes=128, mode="FLASH_ATTN/graph", free_blocks=1000)
    mixed = Step(
        7, now, now + 0.01, decodes=120, prefills=[Prefill(f"r{n}", 256) for n in range(8)]
    )
    try:
        steps = us_each(lambda: recorder.on_step(plain), STEPS)
        prompts = us_each(lambda: recorder.on_step(mixed), STEPS)
        looks = us_each(recorder.look, LOOKS)
    finally:
        box.remove()
    return {
        "step_us": round(statistics.median(steps), 2),
        "step_worst_round_us": round(max(steps), 2),
        "step_with_8_prompts_us": round(statistics.median(prompts), 2),
        "look_us": round(statistics.median(looks), 1),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default=tempfile.gettempdir(), type=Path)
    with tempfile.TemporaryDirectory(dir=parser.parse_args().folder) as folder:
        figures = asyncio.run(measure(Path(folder)))
    print(json.dumps({"machine": machine(), **figures}))


if __name__ == "__main__":
    main()
