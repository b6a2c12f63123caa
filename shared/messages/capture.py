"""The capture of prompts: off unless somebody at the console switched it on for a while, and then in a gateway's memory only."""

from __future__ import annotations

from shared.ids import GatewayId, RequestId, ServiceName
from shared.messages.parts import Count, Message, Prompt, Seconds, Short, Value


class CaptureSwitch(Message, tag="console.capture_switch.v1", frozen=True, kw_only=True):
    """Keep the prompts of a service from now on, for so long; or stop and forget them; or only tell. Answered by `CaptureState`."""

    gateway: GatewayId
    service: ServiceName
    seconds: Seconds | None = None
    """0: stop and forget. None: only tell. A gateway captures for an hour at most."""


class CaptureState(Message, tag="gateway.capture_state.v1", frozen=True, kw_only=True):
    """The answer to `CaptureSwitch`."""

    left_s: Seconds
    """Until all is forgotten; 0: it is off."""
    requests: Count = 0
    bytes: Count = 0
    passed_over: Count = 0
    """Requests since it was switched on that were too large to be kept."""


class CaptureQuery(Message, tag="console.capture_query.v1", frozen=True, kw_only=True):
    """Give a captured request. Answered by `Captured`."""

    gateway: GatewayId
    request: Short
    """Its id, or what its caller named it."""


class CapturedRequest(Value, frozen=True, kw_only=True):
    """What is kept of a request."""

    request: RequestId
    service: ServiceName
    prompts: tuple[Prompt, ...]


class Captured(Message, tag="gateway.captured.v1", frozen=True, kw_only=True):
    """The answer to `CaptureQuery`."""

    found: CapturedRequest | None = None
    services: Count = 0
    """Services whose prompts this gateway captures now."""
