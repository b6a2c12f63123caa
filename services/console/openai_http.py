"""A small client for any OpenAI-compatible HTTP server: list models, stream a chat. Used by `chat`, `bench` and the warm-up of `up`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec

from shared.errors import UserError

_decode = msgspec.json.Decoder().decode
ERROR_CHARS = 300
OK = 200
FAULTS = (aiohttp.ClientError, TimeoutError, msgspec.DecodeError)
"""What a broken or absent server raises; all else is a bug here."""


class AnswerFailed(Exception):
    """The server refused the request or broke the stream; the message is for people."""


class OpenAiHttp:
    """A connection pool to one server; an async context manager."""

    def __init__(
        self, url: str, *, api_key: str | None, connections: int = 1, timeout_s: float = 600.0
    ) -> None:
        self.base = url.rstrip("/").removesuffix("/v1") + "/v1"
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._connections = connections
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, connect=10.0)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> OpenAiHttp:
        connector = aiohttp.TCPConnector(limit=self._connections)
        self._session = aiohttp.ClientSession(
            headers=self._headers, connector=connector, timeout=self._timeout
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def _open(self) -> aiohttp.ClientSession:
        assert self._session is not None, "use `async with`"
        return self._session

    async def models(self) -> list[str]:
        """Return the ids of the models that the server offers. Raises `UserError` where none answers as such."""
        try:
            async with self._open.get(f"{self.base}/models") as response:
                body = await response.read()
        except FAULTS as error:
            raise UserError(
                f"no OpenAI-compatible server answers at {self.base}: {error}",
                hint="start one with `headrace up`, or name another with --url",
            ) from error
        if response.status != OK:
            raise UserError(f"{self.base}/models answered {response.status}: {short(body)}")
        try:
            return [str(model["id"]) for model in _decode(body)["data"]]
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise UserError(f"{self.base}/models is not OpenAI's list: {short(body)}") from error

    async def model_or_first(self, wanted: str | None) -> str:
        """Return `wanted`, or the first model that the server lists. Raises `UserError` where it lists none."""
        if wanted:
            return wanted
        listed = await self.models()
        if not listed:
            raise UserError(
                f"{self.base} lists no model",
                hint="wait until an engine is ready: `headrace status`",
            )
        return listed[0]

    async def chat_events(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yield the decoded chunks of a streamed chat up to `[DONE]`. Raises `AnswerFailed`."""
        data = msgspec.json.encode({**body, "stream": True})
        headers = {"Content-Type": "application/json"}
        try:
            async with self._open.post(
                f"{self.base}/chat/completions", data=data, headers=headers
            ) as response:
                if response.status != OK:
                    raise AnswerFailed(f"HTTP {response.status}: {short(await response.read())}")
                async for line in response.content:
                    if not line.startswith(b"data: "):
                        continue
                    event = line[6:].strip()
                    if event == b"[DONE]":
                        return
                    yield _checked(event)
        except FAULTS as error:
            raise AnswerFailed(f"{type(error).__name__}: {error}") from error
        raise AnswerFailed("the stream ended without [DONE]")


def _checked(event: bytes) -> dict[str, Any]:
    chunk = _decode(event)
    if not isinstance(chunk, dict) or "error" in chunk:
        raise AnswerFailed(f"stream: {short(event)}")
    return chunk


def text_of(chunk: dict[str, Any]) -> str:
    """Return the text that a chunk carries, of all its choices."""
    return "".join(
        choice.get("delta", {}).get("content") or "" for choice in chunk.get("choices", ())
    )


def short(body: bytes) -> str:
    """Return the beginning of a body for a message; of OpenAI's error object only its message."""
    try:
        return str(_decode(body)["error"]["message"])[:ERROR_CHARS]
    except (msgspec.DecodeError, KeyError, TypeError):
        return body[:ERROR_CHARS].decode(errors="replace")
