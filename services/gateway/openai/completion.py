"""`POST /v1/completions`: the body, and the `Call` that it stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, cast

import msgspec
from msgspec import UNSET, Meta

from services.gateway.call import Call, invalid
from services.gateway.openai import request
from services.gateway.openai.chat import BYTES_PER_TOKEN
from services.gateway.openai.limits import RequestLimits
from services.gateway.openai.request import TokenId
from services.gateway.openai.unsupported import COMPLETION, Undecoded, refuse_unsupported
from shared.messages import Prompt, TextPrompt, TokensPrompt
from shared.spec.model import SamplingConfig

DEFAULT_MAX_TOKENS = 16
"""OpenAI's, for this endpoint only."""

TOKEN_ID_BYTES = 36
"""What a token id takes in memory: a place in a list, and a number."""


class CompletionBody(request.CommonBody, frozen=True, kw_only=True):
    """A request to continue one text or several."""

    prompt: str | list[str | TokenId | list[TokenId]]
    logprobs: Annotated[int, Meta(ge=0)] | None = None
    best_of: int | None = None
    # Those of `unsupported.COMPLETION`: known, and refused unless harmless.
    echo: Undecoded = UNSET
    suffix: Undecoded = UNSET


_DECODER = msgspec.json.Decoder(CompletionBody)


def parse_completion(
    body: bytes,
    limits: RequestLimits,
    *,
    seed: int,
    defaults: Callable[[str], SamplingConfig] = request.no_defaults,
) -> Call:
    """Return the call that a completion request's body asks for. Raises `ApiError`, nothing else.

    `seed` is a random one, for a request that brings none; `defaults` what the service of a model was declared with.
    """
    completion = request.decode(_DECODER, body, limits)
    refuse_unsupported(completion, COMPLETION)
    prompts = _prompts(completion.prompt, limits)
    _check_counts(completion, prompts, limits)
    request.check_common(completion, limits, prompts=len(prompts))
    sampling = request.sampling(
        completion,
        limits,
        own=request.Own(seed, defaults),
        max_tokens=completion.max_tokens
        or defaults(completion.model).max_tokens
        or DEFAULT_MAX_TOKENS,
        logprobs=request.check_logprobs(completion.logprobs, limits, param="logprobs"),
    )
    request.refuse_duplicate_keys(body)
    output_tokens = (sampling.max_tokens or 0) * sampling.n * len(prompts)
    return Call(
        kind="completion",
        model=completion.model,
        prompts=prompts,
        sampling=sampling,
        stream=bool(completion.stream),
        include_usage=bool(completion.stream_options and completion.stream_options.include_usage),
        priority=request.priority(completion),
        has_own_seed=completion.seed is not None,
        user=completion.user or "",
        prompt_bytes=sum(map(_prompt_bytes, prompts)),
        work_tokens=sum(map(_prompt_tokens, prompts)) + output_tokens,
    )


def _prompts(
    prompt: str | list[str | int | list[int]], limits: RequestLimits
) -> tuple[Prompt, ...]:
    if isinstance(prompt, str):
        return (TextPrompt(text=prompt),)
    kinds = set(map(type, prompt))
    if kinds == {int}:
        return (TokensPrompt(token_ids=cast("list[int]", prompt)),)
    if len(prompt) > limits.max_prompts:
        raise invalid(
            f"`prompt` has {len(prompt)} entries; at most {limits.max_prompts}.", param="prompt"
        )
    if kinds == {str}:
        return tuple(TextPrompt(text=text) for text in cast("list[str]", prompt))
    if kinds == {list} and [] not in prompt:
        return tuple(TokensPrompt(token_ids=ids) for ids in cast("list[list[int]]", prompt))
    raise invalid(
        "`prompt` must be a string, or a non-empty array of only strings, "
        "only token ids or only non-empty arrays of token ids.",
        param="prompt",
    )


def _check_counts(
    completion: CompletionBody, prompts: tuple[Prompt, ...], limits: RequestLimits
) -> None:
    tokens = sum(len(prompt.token_ids) for prompt in prompts if isinstance(prompt, TokensPrompt))
    if tokens > limits.max_prompt_tokens:
        raise invalid(
            f"`prompt` has {tokens} token ids; at most {limits.max_prompt_tokens}.", param="prompt"
        )
    if completion.best_of is not None and completion.best_of != (completion.n or 1):
        raise invalid(
            "`best_of` is not supported: every candidate is returned; leave it out or repeat `n`.",
            param="best_of",
            code="unsupported_parameter",
        )


def _prompt_bytes(prompt: Prompt) -> int:
    if isinstance(prompt, TokensPrompt):
        return len(prompt.token_ids) * TOKEN_ID_BYTES
    assert isinstance(prompt, TextPrompt)
    return len(prompt.text.encode())


def _prompt_tokens(prompt: Prompt) -> int:
    if isinstance(prompt, TokensPrompt):
        return len(prompt.token_ids)
    return _prompt_bytes(prompt) // BYTES_PER_TOKEN
