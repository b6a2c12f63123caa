"""CPU that vLLM's front takes for each token, by the way in which outputs reach us; no model and no core, so that nothing else counts.

A made-up core's outputs go through vLLM's `OutputProcessor` (detokenizing and all) to
- `tasks`: a queue and a task for each request, as `AsyncLLM.generate` does it;
- `direct`: the adapter's `ChoiceOutput`;
each with and without the statistics that vLLM's front keeps of every token when it has a logger.
Prints JSON: µs a token, the best of the rounds.

    python bench/vllm_front.py MODEL_DIRECTORY [--rounds 5]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.support.processes import machine  # noqa: E402 - needs the path above
from services.engine.adapters import vllm_env  # noqa: E402

vllm_env.prepare()

import uvloop  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402
from vllm import SamplingParams  # noqa: E402
from vllm.sampling_params import RequestOutputKind  # noqa: E402
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason  # noqa: E402
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector  # noqa: E402
from vllm.v1.metrics.stats import IterationStats  # noqa: E402

from services.engine.adapters.token_bytes import TokenBytes  # noqa: E402
from services.engine.adapters.vllm_outputs import Answer, ChoiceOutput  # noqa: E402
from services.engine.adapters.vllm_steps import StepGate  # noqa: E402
from services.engine.ports import Piece  # noqa: E402
from services.engine.stepbook import StepBook  # noqa: E402

BATCHES = (32, 128)
TOKENS = 20_000
"""In one round, over all requests."""


def request_of(number: int) -> EngineCoreRequest:
    """Return a request that never ends by itself."""
    return EngineCoreRequest(
        request_id=f"r{number}-abcdefgh",
        external_req_id=f"r{number}",
        prompt_token_ids=list(range(100, 132)),
        mm_features=None,
        sampling_params=SamplingParams(max_tokens=TOKENS, output_kind=RequestOutputKind.DELTA),
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )


class Round:
    """Some requests, and what has come of them."""

    def __init__(self, tokenizer, *, keeps_stats: bool) -> None:
        self._processor = OutputProcessor(tokenizer, log_stats=keeps_stats)
        self._keeps_stats = keeps_stats
        self._token_bytes = TokenBytes(tokenizer.backend_tokenizer)
        self._gate = StepGate(StepBook(), time.monotonic)
        self.tokens = 0

    async def run(self, way: str, batch: int) -> float:
        """Return the CPU seconds of all steps."""
        async with asyncio.TaskGroup() as group:
            for number in range(batch):
                request = request_of(number)
                queue = self._direct(request) if way == "direct" else self._queue(request, group)
                self._processor.add_request(request, None, None, 0, queue)
            await asyncio.sleep(0)
            return await self._steps(batch, TOKENS // batch)

    def _direct(self, request: EngineCoreRequest) -> RequestOutputCollector:
        answer = Answer(request.request_id, self._sink, self._gate, on_end=lambda *_: None)
        answer.expect(1, 32, token_bytes=self._token_bytes, top=None, still_open={0})
        answer.request_ids = {0: request.request_id}
        return ChoiceOutput(answer, 0, request.request_id)

    def _queue(
        self, request: EngineCoreRequest, group: asyncio.TaskGroup
    ) -> RequestOutputCollector:
        queue = RequestOutputCollector(RequestOutputKind.DELTA, request.request_id)
        group.create_task(self._consume(queue))
        return queue

    async def _consume(self, queue: RequestOutputCollector) -> None:
        finished = False
        while not finished:
            output = queue.get_nowait() or await queue.get()
            self.tokens += len(output.outputs[0].token_ids)
            finished = output.finished

    def _sink(self, _key: str, piece: Piece) -> None:
        self.tokens += len(piece.token_ids)

    async def _steps(self, batch: int, count: int) -> float:
        rng = random.Random(1)
        words = [[rng.randrange(200, 40_000) for _ in range(batch)] for _ in range(count)]
        cpu_s = time.process_time()
        for step, tokens in enumerate(words, start=1):
            finish = FinishReason.LENGTH if step == count else None
            outputs = [
                EngineCoreOutput(f"r{number}-abcdefgh", [token], finish_reason=finish)
                for number, token in enumerate(tokens)
            ]
            stats = IterationStats() if self._keeps_stats else None
            self._processor.process_outputs(outputs, time.monotonic(), stats)
            self._gate.arrive(None)
            # Two turns of the loop: one to wake the tasks, one for them to run.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return time.process_time() - cpu_s


async def bench(model: str, rounds: int) -> dict[str, object]:
    """Return the figures of all ways."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    best: dict[str, float] = {}
    for _ in range(rounds):
        for batch in BATCHES:
            for way in ("tasks", "direct"):
                for keeps_stats in (True, False):
                    each = Round(tokenizer, keeps_stats=keeps_stats)
                    cpu_s = await each.run(way, batch)
                    name = (
                        f"{way}, batch {batch}, {'with' if keeps_stats else 'without'} statistics"
                    )
                    best[name] = min(best.get(name, 1e9), round(cpu_s / each.tokens * 1e6, 1))
    return {"machine": machine(), "us_a_token": best}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    print(json.dumps(uvloop.run(bench(asked.model, asked.rounds)), indent=1))
