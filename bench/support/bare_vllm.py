"""vLLM in process, without anything of Headrace on the way: reads workloads as JSON lines, answers with figures as JSON lines.

Started by bench/real_vllm.py. Uses the same start function and arguments as an engine of Headrace, so that only the path differs.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from services.engine.adapters import vllm_preload
from services.engine.settings import VllmSettings


async def one(engine: object, key: str, prompt: list[int], tokens: int) -> tuple[float, int]:
    """Return the time to the first token in seconds, and how many tokens came."""
    from vllm import SamplingParams  # noqa: PLC0415
    from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

    params = SamplingParams(
        temperature=0.0, max_tokens=tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )
    start_s, first_s, count = time.monotonic(), 0.0, 0
    async for output in engine.generate({"prompt_token_ids": prompt}, params, key):
        count += sum(len(choice.token_ids) for choice in output.outputs)
        if count and not first_s:
            first_s = time.monotonic() - start_s
    return first_s, count


async def main(model: str) -> None:
    """Serve workloads until the input ends."""
    from services.engine.adapters.vllm_launch import start_async_llm  # noqa: PLC0415

    engine = await start_async_llm(
        VllmSettings(model=model, max_model_len=2048, kv_cache_bytes=1 << 30)
    )
    print(json.dumps({"ready": True}), flush=True)
    number = 0
    while line := await asyncio.to_thread(sys.stdin.readline):
        work = json.loads(line)
        start_s = time.monotonic()
        slots = asyncio.Semaphore(work["concurrency"])

        async def run(key: str, prompt: list[int]) -> tuple[float, int]:
            async with slots:  # noqa: B023 - ends within the round
                return await one(engine, key, prompt, work["tokens"])  # noqa: B023

        results = await asyncio.gather(
            *(run(f"{number}-{i}", prompt) for i, prompt in enumerate(work["prompts"]))
        )
        number += 1
        elapsed_s = time.monotonic() - start_s
        print(
            json.dumps(
                {
                    "elapsed_s": elapsed_s,
                    "tokens": sum(n for _, n in results),
                    "ttft_s": [t for t, _ in results],
                }
            ),
            flush=True,
        )
    engine.shutdown()


if __name__ == "__main__":
    vllm_preload.preload()
    uvloop.run(main(sys.argv[1]))
