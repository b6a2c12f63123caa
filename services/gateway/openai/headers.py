"""What a caller may ask for in headers: class of service and deadline. A header beats the body."""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

import msgspec

from services.gateway.call import ApiError, Call, invalid
from services.gateway.openai.limits import RequestLimits
from services.gateway.openai.refusal import echo
from shared.messages import API_PRIORITY_HEADER, API_TIMEOUT_HEADER, Priority

MIN_TIMEOUT_S = 0.1
_SECONDS = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?")


class Fields(Protocol):
    """Header fields: a mapping, or the server's own type."""

    def get(self, name: str, /) -> str | None:
        """Return a field's value. No side effect."""
        ...


class HeaderNames(NamedTuple):
    """How a door calls the two headers; `shown_…` is what error messages say."""

    priority: str
    timeout: str
    shown_priority: str
    shown_timeout: str


HTTP_HEADERS = HeaderNames("x-priority", "x-request-timeout", "X-Priority", "X-Request-Timeout")
"""Lower case, for mappings that fold case and for those whose keys are folded already."""

NATS_HEADERS = HeaderNames(
    API_PRIORITY_HEADER, API_TIMEOUT_HEADER, API_PRIORITY_HEADER, API_TIMEOUT_HEADER
)


def merge_headers(
    call: Call,
    headers: Fields,
    limits: RequestLimits,
    *,
    names: HeaderNames = HTTP_HEADERS,
) -> Call:
    """Return the call as the headers change it. Raises `ApiError` with the header's name as `param`."""
    priority = headers.get(names.priority)
    timeout = headers.get(names.timeout)
    if priority is None and timeout is None:
        return call
    return msgspec.structs.replace(
        call,
        priority=call.priority if priority is None else _priority(priority, names),
        timeout_s=call.timeout_s if timeout is None else _timeout_s(timeout, limits, names),
    )


def _priority(text: str, names: HeaderNames) -> Priority:
    try:
        return Priority(text.strip().lower())
    except ValueError:
        known = ", ".join(Priority)
        raise _refuse(names.shown_priority, text, f"one of {known}") from None


def _timeout_s(text: str, limits: RequestLimits, names: HeaderNames) -> float:
    stripped = text.strip()
    if _SECONDS.fullmatch(stripped):
        timeout_s = float(stripped)
        if MIN_TIMEOUT_S <= timeout_s <= limits.max_timeout_s:
            return timeout_s
    allowed = f"seconds from {MIN_TIMEOUT_S} to {limits.max_timeout_s:g}"
    raise _refuse(names.shown_timeout, text, allowed)


def _refuse(name: str, text: str, allowed: str) -> ApiError:
    return invalid(f"Invalid header {name}: {echo(text)!r}; it must be {allowed}.", param=name)
