"""What promised blocks cost a step, without a model: `schedule()` by vLLM's own queue and by ours, with many who run and many who wait.

And what it takes to put the first free blocks in order. Runs in seconds on one core; prints JSON.

    python bench/block_reserve.py
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.support.processes import machine  # noqa: E402 - needs the path above
from services.engine.reserve_plan import ReserveSettings  # noqa: E402
from tests.support.vllm_rig import imported_vllm  # noqa: E402

imported_vllm()

from services.engine.adapters.free_order import MOST, FreeOrder  # noqa: E402
from tests.support.vllm_core import BLOCK, Core, tiny_model  # noqa: E402

RUNNING, WAITING, STEPS = 128, 512, 60
PROMPT, TOKENS = 30, 400
NEED = -(-(PROMPT + TOKENS) // BLOCK)


def step_us(model: Path, reserve: ReserveSettings | None) -> dict[str, float]:
    """Return the time of making a step in which all decode: with nobody waiting, and with many who wait for blocks."""
    core = Core(model, is_async=False, blocks=RUNNING * NEED + 40, reserve=reserve)
    scheduler = core.scheduler
    scheduler.max_num_running_reqs = scheduler.max_num_active_reqs = 2 * RUNNING
    scheduler.max_num_scheduled_tokens = scheduler.scheduler_config.max_num_batched_tokens = 8192
    for number in range(RUNNING):
        core.add(f"r{number}", PROMPT, TOKENS)
    core.step()
    found = {"nobody waits": _median_us(core)}
    for number in range(WAITING):
        core.add(f"w{number}", 500, 8)
    core.step()
    found["many wait"] = _median_us(core)
    return found


def _median_us(core: Core) -> float:
    times = []
    for _ in range(STEPS):
        began = time.perf_counter()
        output = core.begin()
        times.append((time.perf_counter() - began) * 1e6)
        core.end(output)
    return statistics.median(times)


def tidy_us(model: Path) -> dict[str, float]:
    """Return the time of putting free blocks in order, where they are in any order and where they are in theirs."""
    core = Core(model, is_async=False, blocks=4 * MOST)
    pool = core.scheduler.kv_cache_manager.block_pool
    order = FreeOrder(pool)
    found = {}
    for name, mix in (("in any order", random.Random(1).shuffle), ("in order", None)):
        found[name] = statistics.median(_tidied_us(pool, order, mix) for _ in range(50))
    return found


def _tidied_us(pool, order: FreeOrder, mix: Callable[[list], None] | None) -> float:
    blocks = pool.get_new_blocks(MOST)
    order.tidy()
    if mix is not None:
        mix(blocks)
    else:
        blocks.sort(key=lambda block: block.block_id)
    pool.free_blocks(blocks)
    began = time.perf_counter()
    order.tidy()
    return (time.perf_counter() - began) * 1e6


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_model(Path(folder))
        found = {
            "step_us": {
                "vLLM's queue": step_us(model, None),
                "ours": step_us(model, ReserveSettings()),
            },
            "tidy_us": tidy_us(model),
        }
    print(json.dumps({"machine": machine(), "running": RUNNING, "waiting": WAITING} | found))


if __name__ == "__main__":
    main()
