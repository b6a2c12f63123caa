"""A plain OpenAI server for peers: streams the words of a prompt's answer, always the same ones, a word each 10 ms.

python bench/support/word_backend.py PORT
"""

from __future__ import annotations

import asyncio
import json
import sys
from hashlib import blake2b

from aiohttp import web

STEP_S = 0.01


def words(prompt: str, count: int) -> list[str]:
    """Return an answer."""
    return [
        f" {blake2b(f'{prompt}{index}'.encode(), digest_size=3).hexdigest()}"
        for index in range(count)
    ]


def event(choice: dict[str, object] | None, usage: dict[str, int] | None = None) -> bytes:
    """Return a chunk as a server-sent event."""
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "fake"}
    choices = [] if choice is None else [{"index": 0, **choice}]
    return b"data: " + json.dumps({**chunk, "choices": choices, "usage": usage}).encode() + b"\n\n"


async def chat(request: web.Request) -> web.StreamResponse:
    """Stream an answer."""
    body = await request.json()
    count = body["max_tokens"]
    answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await answer.prepare(request)
    for word in words(body["messages"][-1]["content"], count):
        await asyncio.sleep(STEP_S)
        await answer.write(event({"delta": {"content": word}, "finish_reason": None}))
    await answer.write(event({"delta": {}, "finish_reason": "length"}))
    usage = {"prompt_tokens": 1, "completion_tokens": count, "total_tokens": count + 1}
    await answer.write(event(None, usage) + b"data: [DONE]\n\n")
    return answer


async def models(_: web.Request) -> web.Response:
    """List the one model."""
    return web.json_response({"object": "list", "data": [{"id": "fake", "object": "model"}]})


async def health(_: web.Request) -> web.Response:
    """Say that all is well."""
    return web.json_response({"status": "ok"})


def main() -> None:
    """Serve until told to stop; then finish what is under way."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/health", health)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None, shutdown_timeout=30)


if __name__ == "__main__":
    main()
