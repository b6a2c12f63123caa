"""Clients that misbehave, many at a time, and what they cost the process they call. Knows HTTP and nothing of what is asked."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from tests.support.http_shell import Wire

CHAT_PATH = "/v1/chat/completions"
ANSWER_S = 60.0


def chat_body(model: str, **fields: Any) -> bytes:
    """Return a chat request."""
    messages = [{"role": "user", "content": "hello"}]
    return json.dumps({"model": model, "messages": messages, "ignore_eos": True} | fields).encode()


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} has no memory")


class Peak:
    """The most memory that a process had while somebody looked."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.before_mib = self.most_mib = rss_mib(pid)

    @property
    def growth_mib(self) -> float:
        """How much more it had at most than when this was made."""
        return self.most_mib - self.before_mib

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[Peak]:
        """Look again and again."""
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch())
            yield self
            watching.cancel()

    async def _watch(self) -> None:
        while True:
            self.most_mib = max(self.most_mib, rss_mib(self._pid))
            await asyncio.sleep(0.02)


async def at_once(jobs: Iterable[Callable[[], Awaitable[None]]], *, concurrency: int) -> None:
    """Do jobs, so many at a time; raises what one raises."""
    left = iter(jobs)

    async def worker() -> None:
        for job in left:
            await job()

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(worker())


async def leave_early(port: int, body: bytes, *, how: int) -> None:
    """Ask and leave: in the middle of the body, at once, after the head, or after the first words; gently or by a reset."""
    wire = await Wire.open(port)
    try:
        if how % 4 == 0:
            wire.send(
                f"POST {CHAT_PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: 999\r\n\r\n".encode()
            )
        else:
            wire.post(CHAT_PATH, body)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            if how % 4 >= 2:
                await wire.head()
            if how % 4 == 3:
                await wire.chunk()
    finally:
        if how % 8 >= 4:
            wire.reset()
        else:
            wire.close()


class Answered(msgspec.Struct, frozen=True):
    """How one request was answered."""

    status: int
    took_s: float
    body: bytes
    kind: str = ""


async def ask(
    port: int, body: bytes, *fields: str, path: str = CHAT_PATH, kind: str = ""
) -> Answered:
    """Send a request on a connection of its own and return its whole answer."""
    began = time.monotonic()
    wire = await Wire.open(port)
    try:
        async with asyncio.timeout(ANSWER_S):
            wire.post(path, body, *fields)
            answer = await wire.answer()
    finally:
        wire.close()
    return Answered(answer.status, time.monotonic() - began, answer.body, kind)
