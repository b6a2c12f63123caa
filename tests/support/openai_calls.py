"""Requests, calls and deltas for tests of the gateway's OpenAI core."""

from __future__ import annotations

import json
from typing import Any

from services.gateway.call import Call
from services.gateway.openai.chat import parse_chat
from services.gateway.openai.completion import parse_completion
from services.gateway.openai.limits import RequestLimits
from shared.ids import RequestId, StreamNo
from shared.messages import Delta, DeltaExtra, Finish, StreamError, TokenLogprob, TopLogprob, Usage

LIMITS = RequestLimits()
SEED = 4711
REQUEST_ID = RequestId("chatcmpl-abc")
CREATED_S = 1_760_000_000
USAGE = Usage(prompt_tokens=7, completion_tokens=5, cached_tokens=4)
USAGE_OBJECT = {
    "prompt_tokens": 7,
    "completion_tokens": 5,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 4},
}


def chat_body(**fields: Any) -> bytes:
    return json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields
    ).encode()


def completion_body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": "hi"} | fields).encode()


def chat(**fields: Any) -> Call:
    return parse_chat(chat_body(**fields), LIMITS, seed=SEED)


def completion(**fields: Any) -> Call:
    return parse_completion(completion_body(**fields), LIMITS, seed=SEED)


def delta(text: str = "", finish: Finish | None = None, **extra: Any) -> Delta:
    return Delta(
        stream=StreamNo(1),
        seq=0,
        choice=0,
        text=text,
        token_ids=[1],
        finish=finish,
        extra=DeltaExtra(**extra) if extra else None,
    )


def logprob(token: str, value: float = -0.5, **others: float) -> TokenLogprob:
    top = [
        TopLogprob(token=word, logprob=lp, token_bytes=word.encode()) for word, lp in others.items()
    ]
    return TokenLogprob(token=token, logprob=value, token_bytes=token.encode(), top=top)


FAILURES = [
    (delta("x", Finish.TIMEOUT), 504, "timeout_error"),
    (delta("x", Finish.ERROR), 503, "server_error"),
    (delta("x", Finish.ERROR, error=StreamError(message="the engine died")), 503, "server_error"),
    (delta("x", error=StreamError(message="the engine died")), 503, "server_error"),
    (
        delta(
            "x",
            Finish.ERROR,
            error=StreamError(message="bad schema", retryable=False, param="response_format"),
        ),
        400,
        "invalid_request_error",
    ),
]
"""Deltas that end their stream badly, with the status and the kind of error that they mean."""
