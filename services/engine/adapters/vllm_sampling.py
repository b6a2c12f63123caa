"""Our sampling fields to vLLM's, checked against what this engine can do. Every refusal names the field and the numbers."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from vllm import SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.sampling_params import RequestOutputKind

from services.engine.adapters.vllm_shape import Shape
from services.engine.ports import Job, Limits, RefusedError
from shared.messages import ChatPrompt, RefuseReason, Sampling

RANDOM_SEED = -1
"""What vLLM takes for `no seed`."""
MAX_SEED = 2**63 - 1
_PLACE = re.compile(r"\[\d\d:\d\d:\d\d\] \S+:\d+: ")
"""Where in its source xgrammar found a fault."""


class Abilities(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine can do, as far as sampling goes."""

    limits: Limits
    vocab_size: int
    max_logprobs: int
    """Most alternatives per token."""
    defaults: dict[str, Any]
    """Sampling fields of the model's generation config."""


def room(job: Job, prompt_tokens: int, limits: Limits) -> int:
    """Return how many tokens each choice may have. Raises `RefusedError` where prompt and answer can never fit."""
    is_chat = isinstance(job.prompt, ChatPrompt)
    field = "messages" if is_chat else "prompt"
    if prompt_tokens == 0:
        raise RefusedError(RefuseReason.INVALID, "the prompt has no tokens", param=field)
    wanted = job.sampling.max_tokens
    total = prompt_tokens + (wanted or 1)
    if total > limits.max_model_len:
        raise RefusedError(
            RefuseReason.TOO_LONG,
            f"This model's maximum context length is {limits.max_model_len} tokens. However, you requested"
            f" {total} tokens ({prompt_tokens} in the {field}, {wanted or 1} in the completion). Reduce one of them.",
            param=field if prompt_tokens >= limits.max_model_len else "max_tokens",
        )
    pool_tokens = limits.total_blocks * limits.block_tokens
    if total > pool_tokens:
        raise RefusedError(
            RefuseReason.TOO_LONG,
            f"you requested {total} tokens ({prompt_tokens} in the {field}, {wanted or 1} in the completion);"
            f" the engine's pool holds {limits.total_blocks} blocks of {limits.block_tokens} tokens",
            param=field if prompt_tokens >= pool_tokens else "max_tokens",
        )
    return wanted or min(limits.max_model_len, pool_tokens) - prompt_tokens


def params_of(job: Job, max_tokens: int, *, abilities: Abilities, shape: Shape) -> SamplingParams:
    """Return vLLM's parameters of one choice. Raises `RefusedError`."""
    sampling = job.sampling
    _check(job, max_tokens, abilities)
    try:
        return SamplingParams(
            **_defaulted(sampling, abilities.defaults),
            max_tokens=max_tokens,
            min_tokens=sampling.min_tokens,
            stop=list(sampling.stop),
            stop_token_ids=list(sampling.stop_token_ids),
            seed=seed_of(sampling.seed, 0),
            logprobs=sampling.logprobs,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            logit_bias=sampling.logit_bias or None,
            ignore_eos=sampling.ignore_eos,
            structured_outputs=shape.grammar,
            skip_special_tokens=shape.skip_special_tokens,
            output_kind=RequestOutputKind.DELTA,
            # These belong to one request: a shallow copy of them is enough.
            skip_clone=True,
        )
    except (VLLMClientError, ValueError) as error:
        raise refusal_of(error) from error


def seed_of(seed: int | None, choice: int) -> int | None:
    """Return the seed of a choice: each has its own, as vLLM gives it, and every number is a seed."""
    if seed is None:
        return None
    own = seed + choice
    return MAX_SEED if own == RANDOM_SEED or own > MAX_SEED else own


def refusal_of(error: Exception, *, param: str | None = None) -> RefusedError:
    """Return a refusal for what vLLM says about a request; without the value, which may be long."""
    message = _PLACE.sub("", str(error.args[0]) if error.args else str(error)).strip()
    return RefusedError(
        RefuseReason.INVALID, message, param=getattr(error, "parameter", None) or param
    )


def _defaulted(sampling: Sampling, defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with a default of the model; what neither the request nor the model sets is vLLM's neutral value."""
    asked = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
    }
    known = {name: defaults[name] for name in asked if defaults.get(name) is not None}
    return known | {name: value for name, value in asked.items() if value is not None}


def _check(job: Job, max_tokens: int, abilities: Abilities) -> None:
    sampling, limits = job.sampling, abilities.limits
    if not 1 <= sampling.n <= limits.max_streams:
        raise _invalid(f"n is {sampling.n}, this engine runs {limits.max_streams} choices", "n")
    if sampling.min_tokens > max_tokens:
        raise _invalid(
            f"min_tokens is {sampling.min_tokens}, more than the {max_tokens} that fit",
            "min_tokens",
        )
    if sampling.logprobs is not None and not 0 <= sampling.logprobs <= abilities.max_logprobs:
        field = "top_logprobs" if isinstance(job.prompt, ChatPrompt) else "logprobs"
        raise _invalid(
            f"{sampling.logprobs} alternatives per token were wanted, this engine gives {abilities.max_logprobs}",
            field,
        )
    _check_tokens(sampling.stop_token_ids, abilities.vocab_size, "stop_token_ids")
    _check_tokens(sampling.logit_bias or (), abilities.vocab_size, "logit_bias")


def _check_tokens(token_ids: Any, vocab_size: int, field: str) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise _invalid(
                f"{field} has token {token_id}; the vocabulary has 0 to {vocab_size - 1}", field
            )


def _invalid(message: str, param: str) -> RefusedError:
    return RefusedError(RefuseReason.INVALID, message, param=param)
