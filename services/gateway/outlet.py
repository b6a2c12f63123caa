"""The port between a running call and the door that it came through; each kind of answer implements it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from services.gateway.call import ApiError
from services.gateway.ledger.timing import Timing
from services.gateway.ledger.trace import TraceContext
from shared.ids import RequestId, TenantId
from shared.messages import Delta, Usage

Kind = Literal["chat", "completion"]


class Caller(msgspec.Struct, kw_only=True):
    """Who asks, apart from what is asked."""

    request: RequestId
    door: str
    """`http` or `nats`, for metrics and ledgers."""
    kind: Kind
    received_at: float
    """When the first byte came, on the clock of stamps."""
    trace: TraceContext
    """The root span of the request, in the caller's trace or in one of its own."""
    tenant: TenantId = TenantId("")
    """Empty until the key has been looked at."""
    prefix_salt: str = ""
    """Keeps the tenant's cached prefixes from others; empty where there are no keys."""
    label: str = ""
    """The caller's own request id: shown in logs, never a key."""
    wants_timing: bool = False
    """The caller asks where the time went."""


class Outlet(Protocol):
    """Where an answer goes. Calls come in this order, none may block or raise: `begin`, `delta`…, then `finish` or `fail` exactly once.

    `fail` may also come without `begin`. Nothing but `when_sent` comes after that, and nothing after the client left.
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

    def finish(self, usage: Usage, timing: Timing | None) -> ApiError | None:
        """The answer is whole. `timing` is for the caller, where it asked. Return the error that had to be sent instead, if any."""
        ...

    def fail(self, error: ApiError, timing: Timing | None) -> None:
        """There is no answer, or no more of it."""
        ...

    def when_sent(self, then: Callable[[], None]) -> None:
        """Call `then` once when the last byte was handed to the client's connection, or never can be: now or later."""
        ...
