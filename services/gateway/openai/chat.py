"""`POST /v1/chat/completions`: the body, and the `Call` that it stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta

from services.gateway.call import Call, invalid
from services.gateway.openai import request
from services.gateway.openai.limits import RequestLimits
from services.gateway.openai.messages import ChatMessage, canonical_json, count_parts
from services.gateway.openai.request import Count
from services.gateway.openai.tools import Tool, ToolChoice, choice_text, tools_json
from services.gateway.openai.unsupported import CHAT, Undecoded, refuse_unsupported
from shared.messages import ChatPrompt
from shared.spec.model import SamplingConfig

BYTES_PER_TOKEN = 4
"""Of English text in common vocabularies; only for the estimate of work."""


class ChatBody(request.CommonBody, frozen=True, kw_only=True):
    """A request for an answer to a conversation."""

    messages: list[ChatMessage]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0)] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    # Those of `unsupported.CHAT`: known, and refused unless harmless.
    audio: Undecoded = UNSET
    function_call: Undecoded = UNSET
    functions: Undecoded = UNSET
    metadata: Undecoded = UNSET
    modalities: Undecoded = UNSET
    moderation: Undecoded = UNSET
    prediction: Undecoded = UNSET
    prompt_cache_options: Undecoded = UNSET
    prompt_cache_retention: Undecoded = UNSET
    reasoning_effort: Undecoded = UNSET
    store: Undecoded = UNSET
    verbosity: Undecoded = UNSET
    web_search_options: Undecoded = UNSET


_DECODER = msgspec.json.Decoder(ChatBody)


def parse_chat(
    body: bytes,
    limits: RequestLimits,
    *,
    seed: int,
    defaults: Callable[[str], SamplingConfig] = request.no_defaults,
) -> Call:
    """Return the call that a chat request's body asks for. Raises `ApiError`, nothing else.

    `seed` is a random one, for a request that brings none; `defaults` what the service of a model was declared with.
    """
    chat = request.decode(_DECODER, body, limits)
    refuse_unsupported(chat, CHAT)
    request.check_common(chat, limits, prompts=1)
    request.check_label(chat.safety_identifier, limits, param="safety_identifier")
    request.check_label(chat.prompt_cache_key, limits, param="prompt_cache_key")
    prompt = _prompt(chat, limits)
    sampling = request.sampling(
        chat,
        limits,
        own=request.Own(seed, defaults),
        max_tokens=_max_tokens(chat),
        logprobs=_logprobs(chat, limits),
    )
    request.refuse_duplicate_keys(body)
    prompt_bytes = len(prompt.messages_json) + len(prompt.tools_json or b"")
    output_tokens = sampling.max_tokens or limits.assumed_output_tokens
    return Call(
        kind="chat",
        model=chat.model,
        prompts=(prompt,),
        sampling=sampling,
        stream=bool(chat.stream),
        include_usage=bool(chat.stream_options and chat.stream_options.include_usage),
        priority=request.priority(chat),
        has_own_seed=chat.seed is not None,
        user=chat.user or chat.safety_identifier or "",
        prompt_bytes=prompt_bytes,
        work_tokens=prompt_bytes // BYTES_PER_TOKEN + output_tokens * sampling.n,
    )


def _prompt(chat: ChatBody, limits: RequestLimits) -> ChatPrompt:
    if not 1 <= len(chat.messages) <= limits.max_messages:
        raise invalid(
            f"`messages` has {len(chat.messages)} entries; it needs 1 to {limits.max_messages}.",
            param="messages",
        )
    if (parts := count_parts(chat.messages)) > limits.max_parts:
        raise invalid(
            f"`messages` have {parts} parts and tool calls; at most {limits.max_parts}.",
            param="messages",
        )
    tools = chat.tools or []
    return ChatPrompt(
        messages_json=canonical_json(chat.messages),
        tools_json=tools_json(tools, limits) if tools else None,
        tool_choice=choice_text(chat.tool_choice, tools),
        parallel_tool_calls=chat.parallel_tool_calls is not False,
    )


def _max_tokens(chat: ChatBody) -> int | None:
    both = {chat.max_tokens, chat.max_completion_tokens} - {None}
    if len(both) > 1:
        raise invalid(
            "`max_tokens` and `max_completion_tokens` differ; give one of them.", param="max_tokens"
        )
    return next(iter(both), None)


def _logprobs(chat: ChatBody, limits: RequestLimits) -> int | None:
    count = request.check_logprobs(chat.top_logprobs, limits, param="top_logprobs") or 0
    if chat.logprobs:
        return count
    if count:
        raise invalid("`top_logprobs` needs `logprobs: true`.", param="top_logprobs")
    return None
