"""The port between a running call and the door that it came through; each kind of answer implements it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from services.gateway.call import ApiError
from shared.ids import RequestId, TenantId
from shared.messages import Delta, Usage


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, apart from what is asked."""

    tenant: TenantId
    door: str
    """`http` or `nats`, for metrics and logs."""
    label: str = ""
    """The caller's own request id: shown in logs, never a key."""
    trace: dict[str, str] = {}
    """W3C `traceparent` and `tracestate`."""
    received_at: float
    """Loop time of the first byte."""


class Outlet(Protocol):
    """Where an answer goes. Calls come in this order, none may block or raise: `begin`, `delta`…, then `finish` or `fail` exactly once.

    `fail` may also come without `begin`. Nothing comes after the client left.
    """

    @property
    def is_streamed(self) -> bool:
        """Whether deltas are wanted as they come, not all at the end."""
        ...

    def too_large(self, chars: int) -> ApiError | None:
        """Return why an answer of so many characters (`answer.chars_of`) cannot be sent; asked while deltas wait for its end.

        Then no more of it is generated.
        """
        ...

    def begin(self, request: RequestId) -> None:
        """All prompts are at their engines: from here on the status cannot change any more."""
        ...

    def delta(self, delta: Delta, choice: int) -> None:
        """Take a delta; `choice` counts over all prompts."""
        ...

    def continued(self, choice: int, *, is_exact: bool) -> None:
        """The engine of some choices, `choice` the first of them, was lost: what comes now is another one's.

        Exact: what would have come anyway; else an answer that is as likely.
        """
        ...

    def finish(self, usage: Usage) -> None:
        """The answer is whole."""
        ...

    def fail(self, error: ApiError) -> None:
        """There is no answer, or no more of it."""
        ...
