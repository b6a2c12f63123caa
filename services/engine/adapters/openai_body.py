"""From a job to the JSON body of an OpenAI request. Fields beyond OpenAI's own (vLLM's names) are sent only where the job sets them."""

from __future__ import annotations

from typing import Any

import msgspec

from services.engine.ports import Job, RefusedError
from shared.messages import (
    ChatPrompt,
    Prompt,
    RefuseReason,
    Sampling,
    TextPrompt,
    TokensPrompt,
)

CHAT_PATH = "/chat/completions"
TEXT_PATH = "/completions"
_BYTES_PER_TOKEN = 4

_encode = msgspec.json.Encoder().encode


def request_of(job: Job, *, model: str) -> tuple[str, bytes]:
    """Return path and body. Raises `RefusedError` where a part of the job is no JSON."""
    is_chat = isinstance(job.prompt, ChatPrompt)
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        **_prompt(job.prompt),
        **_sampling(job.sampling),
        **(_chat_only(job.sampling) if is_chat else _text_only(job.sampling)),
    }
    return (CHAT_PATH if is_chat else TEXT_PATH), _encode(body)


def estimate_tokens(prompt: Prompt) -> int:
    """Return about how long a prompt is: the server tells only at the end."""
    match prompt:
        case TokensPrompt():
            return len(prompt.token_ids)
        case TextPrompt():
            size = len(prompt.text.encode())
        case ChatPrompt():
            size = len(prompt.messages_json) + len(prompt.tools_json or b"")
    return max(1, size // _BYTES_PER_TOKEN)


def _prompt(prompt: Prompt) -> dict[str, Any]:
    match prompt:
        case TextPrompt():
            return {"prompt": prompt.text}
        case TokensPrompt():
            return {"prompt": prompt.token_ids}
        case ChatPrompt():
            fields: dict[str, Any] = {"messages": _parsed(prompt.messages_json, "messages")}
            if prompt.tools_json:
                fields["tools"] = _parsed(prompt.tools_json, "tools")
                fields["tool_choice"] = _tool_choice(prompt.tool_choice)
                if not prompt.parallel_tool_calls:
                    fields["parallel_tool_calls"] = False
            return fields


def _parsed(raw: bytes, param: str) -> object:
    """Return the JSON value; copied in as text, a broken one could add fields to the body around it."""
    try:
        value: object = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError(
            RefuseReason.INVALID, f"{param} is no JSON: {error}", param=param
        ) from error
    return value


def _tool_choice(choice: str) -> object:
    kind, has_name, name = choice.partition(":")
    return {"type": "function", "function": {"name": name}} if has_name else kind


def _sampling(sampling: Sampling) -> dict[str, Any]:
    """Return the fields that both endpoints know; those at their neutral value stay out."""
    wanted: dict[str, tuple[object, object]] = {
        "temperature": (sampling.temperature, None),
        "top_p": (sampling.top_p, None),
        "n": (sampling.n, 1),
        "stop": (list(sampling.stop), []),
        "seed": (sampling.seed, None),
        "presence_penalty": (sampling.presence_penalty, 0.0),
        "frequency_penalty": (sampling.frequency_penalty, 0.0),
        "logit_bias": (sampling.logit_bias, None),
        "response_format": (_response_format(sampling), None),
        "top_k": (sampling.top_k, None),
        "min_p": (sampling.min_p, None),
        "min_tokens": (sampling.min_tokens, 0),
        "stop_token_ids": (list(sampling.stop_token_ids), []),
        "repetition_penalty": (sampling.repetition_penalty, None),
        "ignore_eos": (sampling.ignore_eos, False),
    }
    return {name: value for name, (value, neutral) in wanted.items() if value != neutral}


def _chat_only(sampling: Sampling) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if sampling.max_tokens is not None:
        fields["max_tokens"] = sampling.max_tokens
    if sampling.logprobs is not None:
        fields["logprobs"] = True
        fields["top_logprobs"] = sampling.logprobs
    return fields


def _text_only(sampling: Sampling) -> dict[str, Any]:
    # Left out, the old endpoint's limit is 16 tokens; null means up to the context.
    fields: dict[str, Any] = {"max_tokens": sampling.max_tokens}
    if sampling.logprobs is not None:
        fields["logprobs"] = sampling.logprobs
    return fields


def _response_format(sampling: Sampling) -> dict[str, Any] | None:
    if sampling.json_schema is not None:
        schema = _parsed(sampling.json_schema, "response_format")
        answer = {"name": "answer", "schema": schema, "strict": True}
        return {"type": "json_schema", "json_schema": answer}
    return {"type": "json_object"} if sampling.json_object else None
