"""Where each message travels: the table is the architecture diagram of the bus."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from shared.messages.engine import EngineHeartbeat, Resent, TokenBatch
from shared.messages.gateway import Accepted, Cancel, GatewayHeartbeat, Refused, Resend, Submit
from shared.messages.parts import Message

HEARTBEAT_S = 0.5
ENGINE_GONE_S = 1.9
"""Silence that means death: three beats missed. With a look at the clock each 100 ms it is noticed within 2 s."""
GATEWAY_GONE_S = 1.9


class Delivery(StrEnum):
    """How the bus carries a message."""

    CORE = "core"
    """At most once, now or never."""
    REQUEST = "request"
    """Core with exactly one awaited reply."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message travels: `{field}` in the subject is filled from the message."""

    subject: str
    delivery: Delivery
    owner: str
    readers: tuple[str, ...]
    replies: tuple[type[Message], ...] = ()
    key: str | None = None
    """Field whose messages keep their order."""


ROUTES: dict[type[Message], Route] = {
    Submit: Route(
        subject="hr.engine.{engine}.submit",
        delivery=Delivery.REQUEST,
        owner="gateway",
        readers=("engine",),
        replies=(Accepted, Refused),
    ),
    Cancel: Route(
        subject="hr.engine.{engine}.cancel",
        delivery=Delivery.CORE,
        owner="gateway",
        readers=("engine",),
        key="stream",
    ),
    Resend: Route(
        subject="hr.engine.{engine}.resend",
        delivery=Delivery.REQUEST,
        owner="gateway",
        readers=("engine",),
        replies=(Resent,),
    ),
    TokenBatch: Route(
        subject="hr.tokens.{gateway}",
        delivery=Delivery.CORE,
        owner="engine",
        readers=("gateway",),
        key="engine",
    ),
    EngineHeartbeat: Route(
        subject="hr.heartbeat.engine.{service}.{engine}",
        delivery=Delivery.CORE,
        owner="engine",
        readers=("gateway", "console"),
        key="engine",
    ),
    GatewayHeartbeat: Route(
        subject="hr.heartbeat.gateway.{gateway}",
        delivery=Delivery.CORE,
        owner="gateway",
        readers=("gateway", "engine", "console"),
        key="gateway",
    ),
}

ALL_MESSAGES: tuple[type[Message], ...] = (
    *ROUTES,
    *(reply for route in ROUTES.values() for reply in route.replies),
)
