"""What a gateway sends, and the replies it gets."""

from __future__ import annotations

from enum import StrEnum

from shared.ids import EngineId, GatewayId, RequestId, ServiceName, StreamNo, TenantId
from shared.messages.parts import (
    Count,
    Message,
    Micros,
    Place,
    Priority,
    Prompt,
    Sampling,
    Seconds,
    Value,
)
from shared.messages.warmth import Chain


class Prior(Value, frozen=True, kw_only=True):
    """What a choice said at an engine that is lost: another one goes on behind it."""

    choice: Place
    token_ids: list[int]
    chars: Count
    """Characters of its text that were delivered. What its last tokens hold back (half a character, the beginning of a stop string)
    comes with the next ones."""


class Submit(Message, tag="gateway.submit.v1", frozen=True, kw_only=True):
    """One prompt for one chosen engine. Answered by `Accepted` or `Refused` within the deadline of the request."""

    engine: EngineId
    gateway: GatewayId
    stream: StreamNo
    request: RequestId
    service: ServiceName
    prompt: Prompt
    sampling: Sampling
    priority: Priority = Priority.DEFAULT
    tenant: TenantId = TenantId("anonymous")
    deadline_s: Seconds
    """Time left for the whole answer when this was sent; the engine stops generating after it."""
    trace: dict[str, str] = {}
    """W3C `traceparent` and `tracestate` of the client, if any."""
    prior: tuple[Prior, ...] = ()
    """The choices to go on with; others have ended and are not generated. Empty: all choices, from their beginning.
    `max_tokens` and `min_tokens` count prior tokens too; the usage at the end counts new ones only.
    Only for engines that say `resumes`."""
    prefix_salt: str = ""
    """Computed prefixes are reused among submits of the same salt only (`shared/prefix_salt.py`); empty: a salt like any other, that of
    all who are not kept apart."""
    chain: Chain | None = None
    """What the prompt begins with; the engine names prefixes that it holds by these hashes. None: not to be remembered."""


class RefuseReason(StrEnum):
    """Why an engine does not take a submit."""

    INVALID = "invalid"
    """The request can never be served as it is: the client's to change."""
    TOO_LONG = "too_long"
    """Prompt or prompt + `max_tokens` beyond the context or the block pool: the client's to change."""
    UNSUPPORTED = "unsupported"
    """This engine or model has no such feature."""
    OVERLOADED = "overloaded"
    """No room now; another engine may have."""
    DRAINING = "draining"
    """The engine is stopping; choose another."""
    NOT_READY = "not_ready"
    """The engine is starting or failed; choose another."""


class Accepted(Message, tag="engine.accepted.v1", frozen=True, kw_only=True):
    """The engine took the submit; deltas of the stream follow (the first may overtake this reply)."""

    engine: EngineId
    stream: StreamNo
    prompt_tokens: Count
    held_us: Micros = 0
    """From the arrival of the submit to this reply: the rest of the round trip was spent on the way."""


class Refused(Message, tag="engine.refused.v1", frozen=True, kw_only=True):
    """The engine did not take the submit; nothing of it remains there."""

    engine: EngineId
    stream: StreamNo
    reason: RefuseReason
    message: str
    """For people; says what to change, with the numbers."""
    param: str | None = None
    """Name of the OpenAI field at fault."""
    retry_after_s: Seconds | None = None


class Cancel(Message, tag="gateway.cancel.v1", frozen=True, kw_only=True):
    """The stream is no longer wanted. Unknown streams are ignored; a second one changes nothing."""

    engine: EngineId
    gateway: GatewayId
    stream: StreamNo


class Resend(Message, tag="gateway.resend.v1", frozen=True, kw_only=True):
    """Deltas of a stream are missing. Answered by `Resent`."""

    engine: EngineId
    gateway: GatewayId
    stream: StreamNo
    from_seq: Count


class GatewayHeartbeat(Message, tag="gateway.heartbeat.v1", frozen=True, kw_only=True):
    """A gateway is alive: each 500 ms. Engines drop the work of one that is silent for `GATEWAY_GONE_S`."""

    gateway: GatewayId
    beat: Count
    open_streams: Count = 0
    queued: Count = 0
    url: str = ""
    engines: Count = 0
    """Ready engines as this gateway sees them."""
