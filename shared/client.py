"""A Python client of the public NATS API: the calls of an OpenAI client, over request/reply.

    async with HeadraceClient("nats://127.0.0.1:4222") as client:
        answer = await client.chat("smollm2", {"messages": [{"role": "user", "content": "Hello"}]})
        async for chunk in client.stream_chat("smollm2", {"messages": [...]}):
            ...

Bodies and answers are OpenAI's JSON as Python values. Leaving a stream early, or cancelling the task that waits, cancels the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Self

import msgspec

from shared.errors import HeadraceError, UserError
from shared.messages import (
    API_CANCEL_SUBJECT,
    API_END_HEADER,
    API_KEY_HEADER,
    API_PRIORITY_HEADER,
    API_REQUEST_ID_HEADER,
    API_SUBJECT,
    API_TIMEOUT_HEADER,
    Priority,
)
from shared.natsclient import Client, Msg, errors
from shared.subjects import fill

Json = dict[str, Any]
GRACE_S = 5.0
"""What a caller waits beyond the deadline that the gateway keeps: the refusal itself needs its way back."""
CONNECT_S = 5.0
END_ERROR = "error"
STATUS_HEADER = "Status"
NO_RESPONDERS = "503"


class RequestFailed(HeadraceError):
    """The platform did not answer as asked; `error` is OpenAI's error object, `status` the HTTP status that it stands for."""

    def __init__(self, status: int, error: Json) -> None:
        super().__init__(str(error.get("message", "")))
        self.status = status
        self.error = error


class HeadraceClient:
    """One connection to the bus; an async context manager. Safe for many calls at once."""

    def __init__(self, url: str = "nats://127.0.0.1:4222", *, api_key: str | None = None) -> None:
        self._url = url
        self._headers = {API_KEY_HEADER: f"Bearer {api_key}"} if api_key else {}
        self._nats = Client()

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._nats.connect(
                    self._url, max_reconnect_attempts=-1, ping_interval=10, error_cb=_ignore
                )
        except (TimeoutError, OSError, errors.Error) as error:
            raise UserError(
                f"no NATS server answers at {self._url}: {error}",
                hint="start a platform with `headrace up`",
            ) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._nats.close()

    async def chat(
        self, service: str, body: Json, *, timeout_s: float = 60.0, priority: Priority | None = None
    ) -> Json:
        """Return a whole chat completion. Raises `RequestFailed`."""
        return await self._ask(
            service, "chat", body, self._call_headers(timeout_s, priority), timeout_s=timeout_s
        )

    async def completion(
        self, service: str, body: Json, *, timeout_s: float = 60.0, priority: Priority | None = None
    ) -> Json:
        """Return a whole text completion. Raises `RequestFailed`."""
        return await self._ask(
            service,
            "completions",
            body,
            self._call_headers(timeout_s, priority),
            timeout_s=timeout_s,
        )

    async def models(self, service: str, *, timeout_s: float = 10.0) -> Json:
        """Return OpenAI's list of models. Raises `RequestFailed`."""
        return await self._ask(service, "models", {}, dict(self._headers), timeout_s=timeout_s)

    def stream_chat(
        self, service: str, body: Json, *, timeout_s: float = 60.0, priority: Priority | None = None
    ) -> AsyncGenerator[Json, None]:
        """Yield the chunks of a chat completion. Raises `RequestFailed`, also in the middle where the answer breaks off."""
        return self._stream(
            service, "chat", body, self._call_headers(timeout_s, priority), timeout_s=timeout_s
        )

    def stream_completion(
        self, service: str, body: Json, *, timeout_s: float = 60.0, priority: Priority | None = None
    ) -> AsyncGenerator[Json, None]:
        """Yield the chunks of a text completion. Raises `RequestFailed`."""
        return self._stream(
            service,
            "completions",
            body,
            self._call_headers(timeout_s, priority),
            timeout_s=timeout_s,
        )

    def _call_headers(self, timeout_s: float, priority: Priority | None) -> dict[str, str]:
        headers = {**self._headers, API_TIMEOUT_HEADER: f"{timeout_s:g}"}
        return {**headers, API_PRIORITY_HEADER: priority} if priority is not None else headers

    async def _ask(
        self, service: str, verb: str, body: Json, headers: dict[str, str], *, timeout_s: float
    ) -> Json:
        async with aclosing(
            self._messages(service, verb, body, headers, timeout_s=timeout_s)
        ) as messages:
            async for message in messages:
                answer: Json = msgspec.json.decode(message.data)
                return answer
        raise RequestFailed(502, {"message": "the answer is empty"})

    async def _stream(
        self, service: str, verb: str, body: Json, headers: dict[str, str], *, timeout_s: float
    ) -> AsyncGenerator[Json, None]:
        streamed = {**body, "stream": True}
        async with aclosing(
            self._messages(service, verb, streamed, headers, timeout_s=timeout_s)
        ) as messages:
            async for message in messages:
                if API_END_HEADER in (message.headers or {}):
                    return
                yield msgspec.json.decode(message.data)

    async def _messages(
        self, service: str, verb: str, body: Json, headers: Mapping[str, str], *, timeout_s: float
    ) -> AsyncGenerator[Msg, None]:
        """Yield what comes back, errors raised. Whoever leaves before the end cancels the request."""
        inbox = self._nats.new_inbox()
        replies = await self._nats.subscribe(inbox)
        clock = asyncio.get_running_loop().time
        end_s, over = clock() + timeout_s + GRACE_S, False
        try:
            subject = fill(API_SUBJECT, {"service": service, "verb": verb})
            await self._nats.publish(
                subject, msgspec.json.encode(body), reply=inbox, headers=dict(headers)
            )
            while not over:
                message = await replies.next_msg(timeout=max(0.0, end_s - clock()))
                over = API_END_HEADER in (message.headers or {}) or not body.get("stream")
                _raise_if_failed(message)
                yield message
        except (TimeoutError, errors.Error) as error:
            raise RequestFailed(
                504, {"message": f"no answer within {timeout_s:g} s: {error}"}
            ) from error
        finally:
            await replies.unsubscribe()
            if not over:
                await self._cancel(service, inbox)

    async def _cancel(self, service: str, inbox: str) -> None:
        subject = fill(API_CANCEL_SUBJECT, {"service": service})
        await self._nats.publish(
            subject, b"", headers={**self._headers, API_REQUEST_ID_HEADER: inbox}
        )


def _raise_if_failed(message: Msg) -> None:
    headers = message.headers or {}
    if headers.get(STATUS_HEADER) == NO_RESPONDERS:
        raise RequestFailed(
            503, {"message": "no gateway listens: is the platform up?", "code": "no_gateway"}
        )
    if headers.get(API_END_HEADER) == END_ERROR:
        status = headers.get("Nats-Service-Error-Code", "500")
        raise RequestFailed(int(status), msgspec.json.decode(message.data)["error"])


async def _ignore(_: Exception) -> None:
    """Connection trouble shows in the calls that meet it; the library retries by itself."""
