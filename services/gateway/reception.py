"""What both doors do with a request before it is a call: who asks, is it well formed, may it be taken now. Pure but for what
it draws: the seeds of answers, and ids.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from services.gateway import refusals
from services.gateway.call import ApiError, Call
from services.gateway.ledger.trace import ID_BITS, continue_trace
from services.gateway.openai.chat import parse_chat
from services.gateway.openai.completion import parse_completion
from services.gateway.openai.limits import RequestLimits
from services.gateway.openai.models import model_not_found
from services.gateway.outlet import Caller, Kind
from services.gateway.rules import Rules
from shared.health import Health, HealthState
from shared.ids import ServiceName, TenantId, new_request_id
from shared.keys import KeyFile
from shared.messages import API_REQUEST_ID_HEADER, API_TIMING_HEADER

Header = Callable[[str], str | None]
"""Looks up a header by its lower-case name."""

SEED_BITS = 63
MAX_LABEL_CHARS = 128
_LABEL = re.compile(rf"[\w.:/+=@-]{{1,{MAX_LABEL_CHARS}}}", re.ASCII)
PREFIX: dict[Kind, str] = {"chat": "chatcmpl", "completion": "cmpl"}


class DoorNames(NamedTuple):
    """A door, and how it calls the headers that say who asks."""

    door: str
    label: str
    timing: str


HTTP = DoorNames("http", "x-request-id", "x-headrace-timing")
NATS = DoorNames("nats", API_REQUEST_ID_HEADER, API_TIMING_HEADER)


class Reception:
    """The checks that do not depend on the door."""

    def __init__(self, keys: KeyFile, limits: RequestLimits, health: Health, rules: Rules) -> None:
        self._keys = keys
        self._rules = rules
        self._health = health
        self._random = random.Random()  # noqa: S311 - for draws of tokens; keeps no secret
        self.limits = limits

    @property
    def needs_key(self) -> bool:
        """Whether callers must show an API key."""
        return self._keys.is_required

    def caller(self, names: DoorNames, kind: Kind, header: Header, *, received_at: float) -> Caller:
        """Return who asks, as far as the headers tell; whose key it is has yet to be found out."""
        return Caller(
            request=new_request_id(PREFIX[kind]),
            door=names.door,
            kind=kind,
            received_at=received_at,
            trace=continue_trace(
                header("traceparent"),
                header("tracestate"),
                random_bits=self._random.getrandbits(ID_BITS),
            ),
            label=label(header(names.label)),
            wants_timing=header(names.timing) == "1",
        )

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

    def admit(self, caller: Caller, authorization: str | None) -> None:
        """Write down who asks. Raises `ApiError` 401."""
        caller.tenant = self.tenant(authorization)
        caller.prefix_salt = self._keys.salt(caller.tenant)

    def visible(
        self, services: Iterable[ServiceName], authorization: str | None
    ) -> list[ServiceName]:
        """Return those services that the caller may use. Raises `ApiError` 401."""
        return self._rules.visible(services, self.tenant(authorization))

    def parse(self, caller: Caller, body: bytes) -> Call:
        """Return the call in a body, with what its service was declared with where it does not say.

        Raises `ApiError`; also where the caller may not use the service, and where this gateway takes nothing any more.
        """
        if self._health.state in (HealthState.DRAINING, HealthState.FAILED):
            raise refusals.stopping()
        parse = parse_chat if caller.kind == "chat" else parse_completion
        seed = self._random.getrandbits(SEED_BITS)
        call = parse(body, self.limits, seed=seed, defaults=self._rules.sampling)
        rule = self._rules.of(call.model)
        if not rule.admits(caller.tenant):
            # As for a model that there is not: whoever may not use it need not know of it.
            raise model_not_found(call.model)
        if call.priority is None and rule.priority is not None:
            return msgspec.structs.replace(call, priority=rule.priority)
        return call


def label(text: str | None) -> str:
    """Return the caller's own request id where it may appear in logs and headers, else nothing."""
    return text if text and _LABEL.fullmatch(text) else ""
