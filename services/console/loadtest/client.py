"""One streamed chat request over HTTP, with the arrival time of each chunk that carries text. Knows no statistics."""

from __future__ import annotations

import asyncio
from typing import Any

from services.console.loadtest.figures import Sample
from services.console.loadtest.workload import LoadOptions
from services.console.openai_http import AnswerFailed, OpenAiHttp, text_of


class Target:
    """The server under test and what is asked of it."""

    def __init__(self, server: OpenAiHttp, options: LoadOptions, *, model: str) -> None:
        self._server = server
        self._model = model
        self._extra = {"ignore_eos": True} if options.ignore_eos else {}

    async def ask(self, prompt: str, *, output_tokens: int, due_s: float) -> Sample:
        """Send one request and read it to its end; every failure becomes `Sample.error`."""
        clock = asyncio.get_running_loop().time
        sample = Sample(due_s=due_s)
        try:
            async for chunk in self._server.chat_events(self._body(prompt, output_tokens)):
                if text_of(chunk):
                    sample.token_times_s.append(clock())
                if usage := chunk.get("usage"):
                    sample.prompt_tokens = usage["prompt_tokens"]
                    sample.output_tokens = usage["completion_tokens"]
        except AnswerFailed as error:
            sample.error = str(error)
        sample.end_s = clock()
        return sample

    def _body(self, prompt: str, output_tokens: int) -> dict[str, Any]:
        return {
            "model": self._model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": output_tokens,
            "temperature": 0.0,
            "stream_options": {"include_usage": True},
            **self._extra,
        }
