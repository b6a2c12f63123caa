"""Drives a load test: closed loop (so many clients) or open loop (Poisson arrivals). Every task belongs to one group."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from services.console.loadtest.client import Target
from services.console.loadtest.figures import Figures, Sample, summarise
from services.console.loadtest.workload import LoadOptions, arrivals, prompt, words_for
from services.console.openai_http import OpenAiHttp
from shared.errors import UserError

PROBE_WORDS = 16
"""Words of the request that measures what the chat template adds."""

MAX_WAITING = 10_000
"""Arrivals that may wait for a free client; beyond it they count as failed."""

Progress = Callable[[int, int, float], None]
"""Called with (ended, failed, elapsed seconds)."""


class LoadRun:
    """One run; collects samples until its number or its time is reached."""

    def __init__(self, options: LoadOptions, progress: Progress) -> None:
        self._options = options
        self._progress = progress
        self._rng = random.Random(options.seed)  # noqa: S311 -- a workload, not a secret
        self._samples: list[Sample] = []
        self._failed = 0
        self._issued = 0
        self._waiting = 0
        self._words = options.input_tokens
        self._start_s = 0.0

    async def figures(self) -> Figures:
        """Calibrate, run, and return the figures. Raises `UserError` where the server does not answer at all."""
        options = self._options
        connection = OpenAiHttp(
            options.url,
            api_key=options.api_key,
            connections=options.concurrency,
            timeout_s=options.timeout_s,
        )
        async with connection as http:
            server = Target(http, options, model=await http.model_or_first(options.model))
            await self._calibrate(server)
            loop = asyncio.get_running_loop()
            self._start_s = loop.time()
            if options.rate_per_s is None:
                await self._closed_loop(server)
            else:
                await self._open_loop(server, options.rate_per_s)
            elapsed_s = loop.time() - self._start_s
        return summarise(self._samples, elapsed_s=elapsed_s, token_index=self._options.token_index)

    async def _calibrate(self, server: Target) -> None:
        """Learn from one short request what the template adds; it also warms the path."""
        now_s = asyncio.get_running_loop().time()
        sample = await server.ask(prompt(PROBE_WORDS, rng=self._rng), output_tokens=1, due_s=now_s)
        if sample.error is not None:
            raise UserError(f"the first request failed: {sample.error}")
        overhead = max(0, sample.prompt_tokens - PROBE_WORDS)
        self._words = words_for(self._options.input_tokens, overhead_tokens=overhead)

    def _wanted(self) -> bool:
        options = self._options
        total = options.total_requests
        if total is not None and self._issued >= total:
            return False
        elapsed_s = asyncio.get_running_loop().time() - self._start_s
        return options.duration_s is None or elapsed_s < options.duration_s

    async def _one(self, server: Target, due_s: float) -> None:
        text = prompt(self._words, rng=self._rng)
        sample = await server.ask(text, output_tokens=self._options.output_tokens, due_s=due_s)
        self._enter(sample)

    def _enter(self, sample: Sample) -> None:
        self._samples.append(sample)
        self._failed += sample.error is not None
        self._progress(len(self._samples), self._failed, sample.end_s - self._start_s)

    async def _closed_loop(self, server: Target) -> None:
        async def client() -> None:
            while self._wanted():
                self._issued += 1
                await self._one(server, asyncio.get_running_loop().time())

        async with asyncio.TaskGroup() as group:
            for _ in range(self._options.concurrency):
                group.create_task(client())

    async def _open_loop(self, server: Target, rate_per_s: float) -> None:
        slots = asyncio.Semaphore(self._options.concurrency)

        async def arrival(due_s: float) -> None:
            self._waiting += 1
            async with slots:
                self._waiting -= 1
                await self._one(server, due_s)

        async with asyncio.TaskGroup() as group:
            for at_s in arrivals(rate_per_s, rng=self._rng):
                due_s = self._start_s + at_s
                await asyncio.sleep(max(0.0, due_s - asyncio.get_running_loop().time()))
                if not self._wanted():
                    return
                self._issued += 1
                if self._waiting < MAX_WAITING:
                    group.create_task(arrival(due_s))
                else:
                    self._enter(
                        Sample(
                            due_s=due_s, end_s=due_s, error="no free client: raise --concurrency"
                        )
                    )
