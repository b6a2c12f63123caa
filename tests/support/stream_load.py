"""Many streamed requests at once, each kept whole: what was said, how it ended, and the longest silence in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp
import msgspec

STREAM_S = 120.0
"""Deadline of one stream."""


class Outcome(msgspec.Struct, kw_only=True):
    """What became of one stream."""

    prompt: str
    text: str = ""
    finish: str | None = None
    completion_tokens: int | None = None
    continued: str | None = None
    """`exact` or `approximate` where another engine went on."""
    is_done: bool = False
    """`[DONE]` came."""
    error: str | None = None
    longest_gap_s: float = 0.0

    @property
    def is_whole(self) -> bool:
        """Whether the client can take it for a whole answer."""
        return self.is_done and self.finish is not None and self.error is None


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """What became of many."""

    streams: int
    failed: int
    """Ended by an error that the client can see."""
    wrong: int
    """Looked whole and were not what was to come; or ended without a word."""
    continued: int
    longest_gap_s: float


class StreamLoad:
    """Streams chats from one gateway address."""

    def __init__(
        self, url: str, *, model: str, max_tokens: int, stream_s: float = STREAM_S, **fields: Any
    ) -> None:
        self._timeout = aiohttp.ClientTimeout(total=stream_s)
        self._url = f"{url}/v1/chat/completions"
        self._body = {
            "model": model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.0,
            "max_tokens": max_tokens,
            **fields,
        }
        self.texts = 0
        """Chunks with text so far, over all streams."""
        self.open = 0
        """Streams that have begun and not ended."""

    async def run(self, prompts: Sequence[str], *, concurrency: int) -> list[Outcome]:
        """Ask all, so many at a time."""
        slots = asyncio.Semaphore(concurrency)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(timeout=self._timeout, connector=connector) as session:

            async def one(prompt: str) -> Outcome:
                async with slots:
                    return await self._ask(session, prompt)

            return list(await asyncio.gather(*map(one, prompts)))

    async def expected(self, prompts: Sequence[str]) -> dict[str, Outcome]:
        """Ask each prompt once in peace."""
        distinct = sorted(set(prompts))
        outcomes = await self.run(distinct, concurrency=8)
        assert all(outcome.is_whole for outcome in outcomes), outcomes
        return {outcome.prompt: outcome for outcome in outcomes}

    async def _ask(self, session: aiohttp.ClientSession, prompt: str) -> Outcome:
        outcome = Outcome(prompt=prompt)
        messages = [{"role": "user", "content": prompt}]
        self.open += 1
        try:
            async with session.post(self._url, json=self._body | {"messages": messages}) as answer:
                if answer.status != 200:
                    outcome.error = f"{answer.status} {await answer.text()}"
                    return outcome
                await self._read(answer, outcome)
        except (aiohttp.ClientError, TimeoutError) as error:
            outcome.error = f"{type(error).__name__} {error}"
        finally:
            self.open -= 1
        return outcome

    async def _read(self, answer: aiohttp.ClientResponse, outcome: Outcome) -> None:
        last = time.monotonic()
        async for line in answer.content:
            if not line.startswith(b"data: "):
                continue
            if line == b"data: [DONE]\n":
                outcome.is_done = True
                continue
            chunk = msgspec.json.decode(line[6:])
            now = time.monotonic()
            outcome.longest_gap_s, last = max(outcome.longest_gap_s, now - last), now
            self._take(chunk, outcome)

    def _take(self, chunk: dict[str, Any], outcome: Outcome) -> None:
        if "error" in chunk:
            outcome.error = chunk["error"]["message"]
            return
        if chunk.get("usage"):
            outcome.completion_tokens = chunk["usage"]["completion_tokens"]
        if "headrace" in chunk:
            outcome.continued = chunk["headrace"]["continued"]
        for choice in chunk["choices"]:
            if text := choice["delta"].get("content"):
                outcome.text += text
                self.texts += 1
            outcome.finish = choice["finish_reason"] or outcome.finish


def tally(outcomes: Sequence[Outcome], expected: dict[str, Outcome]) -> Tally:
    """Compare what came with what was to come."""
    return Tally(
        streams=len(outcomes),
        failed=sum(outcome.error is not None for outcome in outcomes),
        wrong=sum(_is_wrong(outcome, expected[outcome.prompt]) for outcome in outcomes),
        continued=sum(outcome.continued is not None for outcome in outcomes),
        longest_gap_s=max(outcome.longest_gap_s for outcome in outcomes),
    )


def _is_wrong(got: Outcome, wanted: Outcome) -> bool:
    if got.error is not None:
        return not wanted.text.startswith(got.text) or got.is_done
    same = (got.text, got.finish, got.completion_tokens, got.is_done)
    return same != (wanted.text, wanted.finish, wanted.completion_tokens, True)


async def disturbed(
    load: StreamLoad,
    prompts: Sequence[str],
    disturb: Callable[[], Awaitable[None]],
    *,
    concurrency: int,
    after_texts: int,
) -> list[Outcome]:
    """Run a load and have something happen to the platform once so much has been said."""

    async def trouble() -> None:
        while load.texts < after_texts:  # noqa: ASYNC110 - counted, not told
            await asyncio.sleep(0.02)
        await disturb()

    load.texts = 0
    async with asyncio.TaskGroup() as group:
        happening = group.create_task(trouble())
        outcomes = await load.run(prompts, concurrency=concurrency)
        happening.cancel()
    return outcomes
