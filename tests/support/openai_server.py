"""A small OpenAI-compatible server, made by hand and independent of Headrace: it behaves, or misbehaves as the prompt asks.

Prompts that begin with `!` name a fault. Words are chosen by prompt, seed and index, so that seeds and stop strings can be tested.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

from aiohttp import web

MAX_MODEL_LEN = 2048
WORDS = [
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "你好",
    "🙂",
    "été",
]
WORD_S = 0.005


class OpenAiServer:
    """Listens on a free loopback port; `running` shows what clients have left open."""

    def __init__(self) -> None:
        self.running = 0
        self.requests: list[dict[str, Any]] = []
        self.is_ill = False
        """Answers probes with 500."""
        self._site: web.BaseRunner[Any] | None = None
        self._stopping = asyncio.Event()
        self.url = ""

    async def start(self) -> str:
        """Listen; return the base address."""
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_post("/v1/completions", self._answer)
        self._site = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.1)
        await self._site.setup()
        site = web.TCPSite(self._site, "127.0.0.1", 0)
        await site.start()
        host, port = self._site.addresses[0][:2]
        self.url = f"http://{host}:{port}/v1"
        return self.url

    async def stop(self) -> None:
        """Close all connections."""
        assert self._site is not None
        self._stopping.set()
        await self._site.cleanup()

    async def _models(self, _: web.Request) -> web.Response:
        if self.is_ill:
            raise web.HTTPInternalServerError
        card = {"id": "tiny", "object": "model", "owned_by": "hand", "max_model_len": MAX_MODEL_LEN}
        return web.json_response({"object": "list", "data": [card]})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        prompt = _prompt(body)
        fault = prompt[1:] if prompt.startswith("!") else ""
        if fault in REFUSALS:
            status, headers, text = REFUSALS[fault]
            return web.Response(status=status, headers=headers, text=text)
        if fault == "never":
            await self._stopping.wait()
        tokens = len(prompt.split())
        wanted = tokens + (body.get("max_tokens") or 0)
        if wanted > MAX_MODEL_LEN:
            return _error(
                400,
                f"This model's maximum context length is {MAX_MODEL_LEN} tokens."
                f" However, you requested {wanted} tokens.",
                "max_tokens",
            )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        self.running += 1
        try:
            await response.prepare(request)
            writer = _Writer(request, response, body)
            if fault:
                await _misbehave(writer, fault)
            else:
                await writer.answer(prompt, tokens)
            if fault == "silence":
                await self._stopping.wait()
        finally:
            self.running -= 1
        return response


REFUSALS: dict[str, tuple[int, dict[str, str], str]] = {
    "html": (502, {"Content-Type": "text/html"}, "<html><h1>502 Bad Gateway</h1></html>"),
    "busy": (429, {"Retry-After": "7"}, '{"error": {"message": "slow down"}}'),
    "full": (503, {}, "no room"),
    "bad": (400, {}, '{"error": {"message": "bad top_p", "param": "top_p", "code": 400}}'),
    "detail": (422, {}, '{"detail": [{"loc": ["body"], "msg": "field required"}]}'),
    "key": (401, {}, '{"error": {"message": "no such key"}}'),
    "missing": (404, {}, "404: Not Found"),
    "string": (400, {}, '{"error": "prompt is too long: 9 > 8"}'),
    "page": (200, {"Content-Type": "text/html"}, "<html>hello</html>"),
    "moved": (302, {"Location": "http://127.0.0.1:1/"}, ""),
}


def _error(status: int, message: str, param: str) -> web.Response:
    error = {"message": message, "type": "BadRequestError", "param": param, "code": status}
    return web.json_response({"error": error}, status=status)


def _prompt(body: dict[str, Any]) -> str:
    if "messages" in body:
        return " ".join(str(message["content"]) for message in body["messages"])
    prompt = body["prompt"]
    return prompt if isinstance(prompt, str) else " ".join(map(str, prompt))


class _Writer:
    """Writes the events of one answer."""

    def __init__(self, request: web.Request, response: web.StreamResponse, body: Any) -> None:
        self._request = request
        self._response = response
        self._body = body
        self._is_chat = "messages" in body

    async def raw(self, data: bytes) -> None:
        """Write bytes as they are."""
        await self._response.write(data)

    async def event(self, value: Any) -> None:
        """Write one event."""
        await self.raw(b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n")

    def drop(self) -> None:
        """Cut the connection."""
        assert self._request.transport is not None
        self._request.transport.abort()

    async def word(self, choice: int, text: str, **more: Any) -> None:
        """Write a piece of text."""
        part = {"delta": {"content": text}} if self._is_chat else {"text": text}
        await self.event({"choices": [{"index": choice, "finish_reason": None, **part, **more}]})

    async def answer(self, prompt: str, tokens: int) -> None:
        """Write a whole answer."""
        body = self._body
        choices = [self._text(prompt, index) for index in range(body.get("n", 1))]
        if self._is_chat:
            await self.event(
                {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
            )
        made = 0
        for at in range(max(len(words) for words, *_ in choices)):
            await asyncio.sleep(WORD_S)
            for index, (words, finish, stop) in enumerate(choices):
                if at < len(words):
                    made += 1
                    last = at == len(words) - 1
                    more = {"finish_reason": finish, "stop_reason": stop} if last else {}
                    if body.get("logprobs") is not None and body["logprobs"] is not False:
                        more["logprobs"] = self._logprobs(words[at])
                    await self.word(index, words[at], **more)
        usage = {"prompt_tokens": tokens, "completion_tokens": made}
        await self.event({"choices": [], "usage": usage})
        await self.raw(b"data: [DONE]\n\n")

    def _text(self, prompt: str, index: int) -> tuple[list[str], str, str | None]:
        """Return a choice's words, why it ends, and the stop string that ended it."""
        body = self._body
        schema = body.get("response_format", {}).get("json_schema", {}).get("schema")
        if schema is not None:
            return list(json.dumps(schema["const"], ensure_ascii=False)), "stop", None
        draw = random.Random(f"{prompt} {body.get('seed')} {index}")
        count = body.get("max_tokens") or 40
        natural = count if body.get("ignore_eos") else draw.randint(20, 60)
        words = [draw.choice(WORDS) + " " for _ in range(min(count, natural))]
        for stop in body.get("stop", ()):
            text = "".join(words)
            if stop in text:
                kept = text[: text.index(stop)]
                return [*kept] or [""], "stop", stop
        return words, "length" if natural >= count else "stop", None

    def _logprobs(self, word: str) -> dict[str, Any]:
        count = self._body.get("top_logprobs", 0) if self._is_chat else self._body["logprobs"]
        others = [(word, -0.2), *((f"{other} ", -3.0 - rank) for rank, other in enumerate(WORDS))]
        if not self._is_chat:
            return {
                "tokens": [word],
                "token_logprobs": [-0.2],
                "top_logprobs": [dict(others[:count])],
            }
        top = [
            {"token": token, "logprob": value, "bytes": list(token.encode())}
            for token, value in others[:count]
        ]
        entry = {"token": word, "logprob": -0.2, "bytes": list(word.encode()), "top_logprobs": top}
        return {"content": [entry]}


async def _misbehave(writer: _Writer, fault: str) -> None:
    """Begin well, then do what the fault says."""
    await writer.word(0, "fine ")
    if fault == "split":
        for byte in 'data: {"choices":[{"text":"你好"}]}\r\n\r\n: ping\n\n'.encode():
            await writer.raw(bytes([byte]))
            await asyncio.sleep(0.001)
    await writer.raw(FAULTS[fault])
    if fault == "die":
        writer.drop()


_STOP = b'data: {"choices":[{"index":0,"text":"done","finish_reason":"stop"}]}\n\n'
_DONE = b"data: [DONE]\n\n"
FAULTS: dict[str, bytes] = {
    "die": b"",
    "end": b"",
    "silence": b"",
    "garbage": b"data: {nonsense\n\n",
    "binary": b'data: {"choices":[{"text":"\xff\xfe"}]}\n\n',
    "huge": b"data: " + b"x" * (2 << 20),
    "choice": b'data: {"choices":[{"index":7,"text":"who?"}]}\n\n',
    "error": b'data: {"error":{"message":"out of memory","code":500}}\n\n',
    "fault": b'data: {"error":{"message":"bad image","code":400,"param":"messages"}}\n\n',
    "strange": b'data: {"choices":[{"index":0,"text":"","finish_reason":"cosmic_ray"}]}\n\n',
    "no_usage": _STOP + _DONE,
    "no_done": _STOP,
    "split": _STOP + _DONE,
}
