"""Whether a platform answers: NATS greets, the gateway says `/ready`, and a real answer comes back."""

from __future__ import annotations

import asyncio

import aiohttp

from services.console.openai_http import AnswerFailed, OpenAiHttp, text_of
from shared.errors import UserError

POLL_S = 0.05
NATS_START_S = 10.0
WARM_UP_PROMPT = "Say hello in five words."
WARM_UP_TOKENS = 16
WARM_UP_S = 120.0
OK = 200


async def nats_greets(port: int) -> None:
    """Return when a NATS server greets on loopback. Raises `UserError` after `NATS_START_S`."""
    try:
        async with asyncio.timeout(NATS_START_S):
            while not await _greeted(port):  # noqa: ASYNC110 -- another process's start has no event
                await asyncio.sleep(POLL_S)
    except TimeoutError as error:
        raise UserError(f"the NATS server did not start within {NATS_START_S:.0f} s") from error


async def _greeted(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        return (await reader.readline()).startswith(b"INFO ")
    finally:
        writer.close()


async def gateway_ready(url: str) -> None:
    """Return when the gateway says that it can serve; the caller sets the deadline."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2.0)) as session:
        while True:
            try:
                async with session.get(f"{url}/ready") as response:
                    if response.status == OK:
                        return
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(POLL_S)


async def first_answer(url: str, *, model: str, api_key: str | None) -> str:
    """Return what the model answers to a first prompt. Raises `UserError` where it does not answer."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": WARM_UP_PROMPT}],
        "max_tokens": WARM_UP_TOKENS,
        "temperature": 0.0,
    }
    async with OpenAiHttp(url, api_key=api_key, timeout_s=WARM_UP_S) as server:
        try:
            return "".join([text_of(chunk) async for chunk in server.chat_events(body)])
        except AnswerFailed as error:
            raise UserError(f"the platform is up, but does not answer: {error}") from error
