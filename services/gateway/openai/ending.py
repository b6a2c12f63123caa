"""How a choice or a stream ends, in a client's words."""

from __future__ import annotations

from typing import Literal

from services.gateway.call import ApiError, Call
from services.gateway.openai.responses import Note, PromptTokensDetails, UsageObject
from shared.messages import Delta, Finish, StreamError, Usage

_UNNAMED = StreamError(message="The engine failed; try again.")


def choice_count(call: Call) -> int:
    """Return the number of choices of a call, over all its prompts."""
    return len(call.prompts) * call.sampling.n


def usage_object(usage: Usage) -> UsageObject:
    """Return OpenAI's usage object."""
    return UsageObject(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(usage.cached_tokens),
    )


def total_usage(usages: list[Usage]) -> Usage:
    """Return the sum over the streams of one request."""
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
    )


def continued_note(*, is_exact: bool) -> Note:
    """Return what is said about an answer that another engine went on with."""
    return Note(continued="exact" if is_exact else "approximate")


def chat_finish(finish: Finish) -> Literal["stop", "length", "tool_calls"]:
    """Return the `finish_reason` of a chat choice that ended well."""
    match finish:
        case Finish.LENGTH:
            return "length"
        case Finish.TOOL_CALLS:
            return "tool_calls"
        case _:
            return "stop"


def completion_finish(finish: Finish) -> Literal["stop", "length"]:
    """Return the `finish_reason` of a completion that ended well."""
    return "length" if finish is Finish.LENGTH else "stop"


def failure_of(delta: Delta) -> ApiError | None:
    """Return what a client is told where the delta ends its stream without a whole answer."""
    error = delta.extra.error if delta.extra is not None else None
    if delta.finish is Finish.TIMEOUT:
        return ApiError(
            504,
            error.message if error else "The answer was not complete within the request's timeout.",
            kind="timeout_error",
            code="request_timeout",
        )
    if error is None and delta.finish is not Finish.ERROR:
        return None
    return _engine_failure(error or _UNNAMED)


def _engine_failure(error: StreamError) -> ApiError:
    if error.retryable:
        return ApiError(
            503, error.message, kind="server_error", code="engine_failed", param=error.param
        )
    return ApiError(400, error.message, kind="invalid_request_error", param=error.param)
