"""What both doors do with a request before it is a call: who asks, is it well formed, may it be taken now. Pure but for the seed
it draws.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Literal

from services.gateway import refusals
from services.gateway.call import ApiError, Call
from services.gateway.openai.chat import parse_chat
from services.gateway.openai.completion import parse_completion
from services.gateway.openai.limits import RequestLimits
from shared.health import Health, HealthState
from shared.ids import TenantId
from shared.keys import KeyFile

Kind = Literal["chat", "completion"]
Header = Callable[[str], str | None]
"""Looks up a header by its lower-case name."""

SEED_BITS = 63
MAX_LABEL_CHARS = 128
MAX_TRACESTATE_CHARS = 512
_LABEL = re.compile(rf"[\w.:/+=@-]{{1,{MAX_LABEL_CHARS}}}", re.ASCII)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class Reception:
    """The checks that do not depend on the door."""

    def __init__(self, keys: KeyFile, limits: RequestLimits, health: Health) -> None:
        self._keys = keys
        self._health = health
        self._random = random.Random()  # noqa: S311 - for draws of tokens; keeps no secret
        self.limits = limits

    @property
    def needs_key(self) -> bool:
        """Whether callers must show an API key."""
        return self._keys.is_required

    def tenant(self, authorization: str | None) -> TenantId:
        """Return who asks. Raises `ApiError` 401."""
        tenant = self._keys.tenant(authorization)
        if tenant is not None:
            return tenant
        missing = not authorization
        raise ApiError(
            401,
            "You did not provide an API key: send the header `Authorization: Bearer <key>`."
            if missing
            else "Incorrect API key provided.",
            kind="authentication_error",
            code="missing_api_key" if missing else "invalid_api_key",
        )

    def parse(self, kind: Kind, body: bytes) -> Call:
        """Return the call in a body. Raises `ApiError`; also where this gateway takes nothing any more."""
        if self._health.state in (HealthState.DRAINING, HealthState.FAILED):
            raise refusals.stopping()
        parse = parse_chat if kind == "chat" else parse_completion
        return parse(body, self.limits, seed=self._random.getrandbits(SEED_BITS))


def label(text: str | None) -> str:
    """Return the caller's own request id where it may appear in logs and headers, else nothing."""
    return text if text and _LABEL.fullmatch(text) else ""


def trace(header: Header) -> dict[str, str]:
    """Return the W3C trace context of a request, where it is well formed."""
    parent = header("traceparent")
    if parent is None or not _TRACEPARENT.fullmatch(parent):
        return {}
    state = header("tracestate")
    if state is None or len(state) > MAX_TRACESTATE_CHARS or not state.isprintable():
        return {"traceparent": parent}
    return {"traceparent": parent, "tracestate": state}
