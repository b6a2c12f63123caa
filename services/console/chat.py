"""`headrace chat`: a streamed conversation in the terminal."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from services.console import output
from services.console.openai_http import AnswerFailed, OpenAiHttp, text_of

HELP = "Ctrl-D ends, /reset forgets the conversation."


async def chat(
    url: str,
    *,
    model: str | None,
    api_key: str | None,
    system: str | None,
    max_tokens: int,
    temperature: float | None,
) -> int:
    """Talk until end of input; return the exit code. Raises `UserError` where no server answers."""
    async with OpenAiHttp(url, api_key=api_key) as server:
        name = await server.model_or_first(model)
        output.note(f"{name} at {server.base}. {HELP}")
        options: dict[str, Any] = {"model": name, "max_tokens": max_tokens}
        if temperature is not None:
            options["temperature"] = temperature
        opening = [{"role": "system", "content": system}] if system else []
        messages: list[dict[str, Any]] = list(opening)
        while (asked := await asyncio.to_thread(_read)) is not None:
            if asked == "/reset":
                messages = list(opening)
            elif asked:
                messages.append({"role": "user", "content": asked})
                answer = await _answer(server, options | {"messages": messages})
                if answer is None:
                    messages.pop()
                else:
                    messages.append({"role": "assistant", "content": answer})
    return 0


def _read() -> str | None:
    if sys.stdin.isatty():
        output.piece("\n> ")
    typed = sys.stdin.readline()
    return typed.strip() if typed else None


async def _answer(server: OpenAiHttp, body: dict[str, Any]) -> str | None:
    """Show an answer while it comes and return it; `None` where it failed (the turn is forgotten)."""
    pieces: list[str] = []
    try:
        async for chunk in server.chat_events(body):
            text = text_of(chunk)
            pieces.append(text)
            output.piece(text)
    except AnswerFailed as error:
        output.line()
        output.error(str(error))
        return None
    output.line()
    return "".join(pieces)
