"""How soon the first token of a long prompt comes, by where its KV blocks are: nowhere, on disk, in files of vLLM's own tier, in the pool.

Real vLLM on the CPU platform, a new process for each run, our store in a process of its own, checksums on; runs of all ways take turns.
Cold: the files' pages are dropped first (vLLM's file tier reads past the page cache in any case).
Also measured: what saving costs while the prompt is computed, and what saving and loading do to another stream that decodes meanwhile.
Prints JSON, and a table on standard error.

    python bench/kv_tiers.py MODEL_DIRECTORY [--tokens 7000] [--rounds 3] [--block-tokens 32] [--folder DIRECTORY]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.support import kv_engine  # noqa: E402 - needs the path above
from bench.support.kv_engine import Asker, in_own_process, kv_of, prompt_of, settings_of  # noqa: E402
from bench.support.processes import machine  # noqa: E402
from services.engine.adapters import vllm_preload  # noqa: E402
from tests.support.kv_store_process import KvStoreProcess  # noqa: E402

SETTLE_S = 1.0
"""For what is still being written."""
STREAM = 150
"""Tokens of the stream that decodes beside."""


class Ways:
    """Everything that a run needs."""

    def __init__(self, model: Path, folder: Path, *, tokens: int, block: int) -> None:
        self.model, self.tokens = model, tokens
        self.engine = partial(settings_of, model, block=block)
        self.values, self.files = folder / "store", folder / "fs"
        self.values.mkdir()
        self.store = KvStoreProcess(self.values, budget_bytes=8 << 30).start()

    def once(self, seed: int, *, store: bool = False, fs: bool = False, twice: bool = False) -> Any:
        """Ask in a new process; `twice`: and again there."""
        settings = self.engine(fs=self.files if fs else None)
        kv = kv_of(self.store.path if store else None)

        async def work(asker: Asker) -> dict[str, Any]:
            first = await asker.ask(prompt_of(seed, self.tokens))
            again = await asker.ask(prompt_of(seed, self.tokens)) if twice else {}
            await asyncio.sleep(SETTLE_S)
            return {"first": first, "again": again}

        return in_own_process(partial(kv_engine.with_engine, settings, kv, work))

    def drop_pages(self) -> None:
        """Have the next reads come from the disk. Mapped pages cannot be dropped, so the store is started anew."""
        self.store.stop()
        os.sync()
        for path in (*self.values.rglob("*"), *self.files.rglob("*")):
            if path.is_file():
                fd = os.open(path, os.O_RDONLY)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)
        self.store.start()


async def beside(
    asker: Asker, prompt: list[int], work: Callable[[], Awaitable[Any]]
) -> list[float]:
    """Return the pauses of a stream between its tokens, while something else is done."""
    key = await asker.begin(prompt, STREAM)
    await asker.first(key)
    began = time.monotonic()
    await work()
    ended = time.monotonic()
    asker.engine.cancel(key)
    at = [each for each in asker.at[key] if began <= each <= ended]
    return [later - earlier for earlier, later in itertools.pairwise(at)]


def disturbed(ways: Ways, seed: int) -> dict[str, Any]:
    """Return the pauses of a decoding stream beside a long prompt: one that is all in the pool, one that is saved, one that is loaded."""
    settings = ways.engine(fs=None)
    prompt = prompt_of(seed, ways.tokens)

    async def pooled(asker: Asker) -> None:
        await asker.ask(prompt)
        await asyncio.sleep(SETTLE_S)

    async def saving(asker: Asker) -> dict[str, Any]:
        # Short prompts go to disk when they come for the second time.
        await asker.ask(prompt)
        at_second = await beside(asker, prompt_of(seed + 1, 16), partial(pooled, asker))
        at_third = await beside(asker, prompt_of(seed + 2, 16), partial(pooled, asker))
        return {"saved": at_second, "calm": at_third}

    async def loading(asker: Asker) -> dict[str, Any]:
        loaded = await beside(asker, prompt_of(seed + 3, 16), partial(pooled, asker))
        calm = await beside(asker, prompt_of(seed + 4, 16), partial(pooled, asker))
        return {"loaded": loaded, "calm": calm}

    kv = kv_of(ways.store.path, min_tokens=1 << 20)
    saved = in_own_process(partial(kv_engine.with_engine, settings, kv, saving))
    loaded = in_own_process(partial(kv_engine.with_engine, settings, kv, loading))
    return {
        "saved": saved["saved"],
        "loaded": loaded["loaded"],
        "calm": saved["calm"] + loaded["calm"],
    }


def bench(ways: Ways, rounds: int) -> dict[str, Any]:
    """Return all figures."""
    rows: dict[str, list[dict[str, Any]]] = {}
    gaps: dict[str, list[float]] = {"saved": [], "loaded": [], "calm": []}
    try:
        for number in range(rounds):
            seed = 1000 * (number + 1)
            order = [
                ("recompute", partial(ways.once, seed)),
                ("recompute, saving", partial(ways.once, seed, store=True)),
                ("fs, saving", partial(ways.once, seed, fs=True)),
                ("store, warm", partial(ways.once, seed, store=True, twice=True)),
                ("fs, warm", partial(ways.once, seed, fs=True)),
                ("store, cold", partial(cold, ways, seed, store=True)),
                ("fs, cold", partial(cold, ways, seed, fs=True)),
            ]
            for name, run in order:
                told = run()
                rows.setdefault(name, []).append(told["first"] | {"start_s": told["start_s"]})
                if told["again"]:
                    rows.setdefault("pool", []).append(told["again"] | {"start_s": told["start_s"]})
                print(number, name, told["first"] | {"answer": None}, file=sys.stderr, flush=True)
            for name, each in disturbed(ways, seed + 500).items():
                gaps[name] += each
    finally:
        ways.store.stop()
    return {"machine": machine(), "tokens": ways.tokens, **figures(rows, gaps)}


def cold(ways: Ways, seed: int, **way: bool) -> Any:
    """Ask with no page in memory."""
    ways.drop_pages()
    return ways.once(seed, **way)


def figures(rows: dict[str, list[dict[str, Any]]], gaps: dict[str, list[float]]) -> dict[str, Any]:
    """Return medians, ratios and whether all answers are the same."""
    medians = {name: statistics.median(each["ttft_s"] for each in of) for name, of in rows.items()}
    base = medians["recompute"]
    p99 = {name: quantile(each, 0.99) for name, each in gaps.items()}
    answers = {name: [each["answer"] for each in of] for name, of in rows.items()}
    # In bfloat16 a prompt in one piece and its last tokens alone may differ in the last bit, which decides ties.
    computed = [
        of for name, of in answers.items() if not any(each["cached"] for each in rows[name])
    ]
    loaded = [of for name, of in answers.items() if any(each["cached"] for each in rows[name])]
    return {
        "ttft_s": {name: [round(each["ttft_s"], 4) for each in of] for name, of in rows.items()},
        "cached": {name: [each["cached"] for each in of] for name, of in rows.items()},
        "stages_ms": {name: [each["stages_ms"] for each in of] for name, of in rows.items()},
        "start_s": {name: [round(each["start_s"], 2) for each in of] for name, of in rows.items()},
        "times_faster": {name: round(base / each, 1) for name, each in medians.items()},
        "store_by_fs": {
            how: round(medians[f"store, {how}"] / medians[f"fs, {how}"], 3)
            for how in ("warm", "cold")
        },
        "saving_percent": round(100 * (medians["recompute, saving"] / base - 1), 2),
        "gap_p99_ms": {name: round(1000 * each, 2) for name, each in p99.items()},
        "gap_max_ms": {name: round(1000 * max(each), 2) for name, each in gaps.items() if each},
        "gap_p99_by_calm": {
            name: round(p99[name] / p99["calm"], 3) for name in ("saved", "loaded") if p99["calm"]
        },
        "same_answers": {
            "wherever the blocks came from": all(each == loaded[0] for each in loaded),
            "whenever it was computed": all(each == computed[0] for each in computed),
            "computed and loaded": loaded[0] == computed[0],
        },
    }


def quantile(values: list[float], share: float) -> float:
    """Return a quantile; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def table(told: dict[str, Any]) -> str:
    """Return the figures for people."""
    lines = [f"{'way':<20} {'TTFT s (median)':>16} {'times faster':>13}"]
    for name, each in told["ttft_s"].items():
        lines.append(
            f"{name:<20} {statistics.median(each):>16.3f} {told['times_faster'][name]:>13.1f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Read the arguments and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=7000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--block-tokens", type=int, default=32)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to measure")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kv-bench-", dir=chosen.folder))
    vllm_preload.preload()
    try:
        ways = Ways(chosen.model.resolve(), folder, tokens=chosen.tokens, block=chosen.block_tokens)
        told = bench(ways, chosen.rounds)
    finally:
        with suppress(OSError):
            shutil.rmtree(folder)
    print(table(told), file=sys.stderr)
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
