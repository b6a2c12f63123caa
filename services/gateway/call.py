"""A validated request of a client, whatever door it came through, and the one error type that goes back out of that door."""

from __future__ import annotations

from typing import Literal

import msgspec

from shared.errors import HeadraceError
from shared.messages import Priority, Prompt, Sampling


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A chat or completion request that passed validation."""

    kind: Literal["chat", "completion"]
    model: str
    prompts: tuple[Prompt, ...]
    """Chat: exactly one. Completion: one stream each; choice index = prompt index × n + choice."""
    sampling: Sampling
    stream: bool = False
    include_usage: bool = False
    priority: Priority | None = None
    """What the body asked for (`service_tier`); a header may say otherwise."""
    timeout_s: float | None = None
    has_own_seed: bool = False
    """The caller gave the seed, so that the same answer is to come again."""
    user: str = ""
    prompt_bytes: int = 0
    """About what all prompts take in memory."""
    work_tokens: int = 0
    """Estimated token work over all prompts and choices: prompt bytes ÷ 4 + tokens allowed to be generated.
    For admission and routing only."""


class ApiError(HeadraceError):
    """What a client is told: OpenAI's error object and its HTTP status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        """OpenAI's `type`: `invalid_request_error`, `authentication_error`, `rate_limit_error`, `server_error`, …"""
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    def body(self) -> bytes:
        """Return the JSON error object, `{"error": {message, type, param, code}}`."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


def invalid(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """Return a 400 for a request that must be changed."""
    return ApiError(400, message, kind="invalid_request_error", code=code, param=param)
