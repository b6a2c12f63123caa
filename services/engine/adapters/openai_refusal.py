"""Why an OpenAI-compatible server did not take a request, in our words: from status, headers and body to a `RefusedError`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from services.engine.adapters.openai_chunks import ErrorBody, error_body
from services.engine.ports import RefusedError
from shared.messages import RefuseReason

_TOO_LONG_WORDS = (
    "context length",
    "context_length",
    "context size",
    "too long",
    "maximum input length",
    "max_total_tokens",
    "exceeds the available context",
)
_REASONS = {
    400: RefuseReason.INVALID,
    401: RefuseReason.NOT_READY,
    403: RefuseReason.NOT_READY,
    404: RefuseReason.UNSUPPORTED,
    405: RefuseReason.UNSUPPORTED,
    413: RefuseReason.TOO_LONG,
    422: RefuseReason.INVALID,
    429: RefuseReason.OVERLOADED,
    501: RefuseReason.UNSUPPORTED,
    503: RefuseReason.OVERLOADED,
}
_CALLERS_FAULT = (RefuseReason.INVALID, RefuseReason.TOO_LONG)


class _Wrapped(msgspec.Struct):
    """The three wrappings that servers use: OpenAI's, FastAPI's, and none."""

    error: msgspec.Raw = msgspec.Raw(b"")
    detail: msgspec.Raw = msgspec.Raw(b"")


def refusal_of(status: int, headers: Mapping[str, str], body: bytes) -> RefusedError:
    """Return the refusal that a response which is no event stream stands for."""
    said = _said(body)
    reason = _REASONS.get(status, RefuseReason.NOT_READY)
    if reason is RefuseReason.INVALID and _is_too_long(said):
        reason = RefuseReason.TOO_LONG
    if status in (401, 403):
        message = f"the server refuses our API key (HTTP {status}): check openai.api_key"
    elif reason in _CALLERS_FAULT:
        message = said.message or f"the server refused the request with HTTP {status}"
    else:
        message = f"the server answered HTTP {status}: {said.message or '(nothing)'}"
    return RefusedError(
        reason,
        message,
        param=said.param if reason in _CALLERS_FAULT else None,
        retry_after_s=_seconds(headers.get("Retry-After")),
    )


def _said(body: bytes) -> ErrorBody:
    """Return the error object in a body; of a page for people no more than one line."""
    try:
        wrapped = msgspec.json.decode(body, type=_Wrapped)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ErrorBody(message=" ".join(body[:200].decode(errors="replace").split()))
    return error_body(bytes(wrapped.error) or bytes(wrapped.detail) or body)


def _is_too_long(said: ErrorBody) -> bool:
    text = f"{said.code or ''} {said.message}".lower()
    return any(words in text for words in _TOO_LONG_WORDS)


def _seconds(text: str | None) -> float | None:
    """Return a Retry-After in seconds; dates, which no engine sends, count as none."""
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:
        return None
