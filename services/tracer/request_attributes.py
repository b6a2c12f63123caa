"""What the spans of a request say of it. Pure.

What many requests have in common stands in groups that are made once; the rest is listed for each request.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from services.tracer import names
from services.tracer.attributes import NOTHING_HIDDEN, Attributes, AttributeValue, Group, Hidden
from shared.ids import EngineId, GatewayId, ServiceName
from shared.messages import BlackBox, Ledger, Outcome

PROVIDER = "headrace"
LAYOUT = "sequential"
OPERATIONS = {"chat": "chat", "completion": "text_completion"}
ROUTES = {"chat": "/v1/chat/completions", "completion": "/v1/completions"}
HTTP = "http"
SERVER_ERROR = 500
ERRORS = frozenset({Outcome.FAILED, Outcome.STOPPED, Outcome.EXPIRED})
GROUPS = 1024
"""Remembered groups: one for each combination of service, engine, outcome, tenant and the like that is about."""


class Context(msgspec.Struct, frozen=True, gc=False):
    """What the ledger itself does not say."""

    service: ServiceName
    gateway: GatewayId
    trace_state: str = ""
    reason: str = ""
    """Why sampling kept it."""
    max_spans: int = 50
    hidden: Hidden = NOTHING_HIDDEN
    stages: tuple[str, ...] = ()
    """Stages that get spans; none named: all."""
    boxes: Mapping[EngineId, BlackBox] = {}


def error_of(ledger: Ledger) -> str | None:
    """Return the code of an error that is the server's; a 4xx leaves the status of a server's span unset, as OpenTelemetry wants it."""
    if ledger.outcome in ERRORS or ledger.status >= SERVER_ERROR:
        return ledger.code or ledger.outcome.value
    return None


def shared_group(ledger: Ledger, context: Context) -> Group:
    """Return what every span of the request has, and every request of this engine and class too."""
    return _shared_group(
        context.service, ledger.version, ledger.engine, ledger.priority.value, context.hidden
    )


@lru_cache(maxsize=GROUPS)
def _shared_group(service: str, version: str, engine: str, priority: str, hidden: Hidden) -> Group:
    pairs: Attributes = (
        (names.SERVICE, service),
        (names.VERSION, version),
        (names.ENGINE_ID, engine),
        (names.PRIORITY, priority),
    )
    return Group(hidden.shown(pairs))


def shared_attributes(ledger: Ledger) -> Attributes:
    """Return what every span of this request has, beside the group."""
    prompt = ledger.prompt_tokens
    return [
        (names.REQUEST_ID, ledger.request),
        (names.PREFILL_TOKENS, ledger.prefill_tokens),
        (names.CACHED_TOKENS, ledger.cached_tokens),
        *(
            pair
            for pair in (
                (names.HOST_TOKENS, ledger.host_tokens),
                (names.DISK_TOKENS, ledger.disk_tokens),
            )
            if pair[1]
        ),
        (names.KV_CACHE_HIT_RATE, round(ledger.cached_tokens / prompt, 4) if prompt else 0.0),
        (names.DECODE_TOKENS, ledger.completion_tokens),
        (names.BATCH_SIZE, round(ledger.batch_size, 2)),
        (names.KV_BLOCKS, ledger.kv_blocks),
    ]


def root_group(ledger: Ledger, context: Context) -> Group:
    """Return what the root says that many requests say."""
    return _root_group(
        (context.service, context.gateway, context.reason, context.hidden),
        (ledger.kind, ledger.door, ledger.status, ledger.code, ledger.outcome, ledger.is_streamed),
        (ledger.backend, ledger.zone, ledger.tenant, ledger.mode, ledger.is_estimated),
        tuple([choice.finish for choice in ledger.choices]),
    )


@lru_cache(maxsize=GROUPS)
def _root_group(
    origin: tuple[ServiceName, GatewayId, str, Hidden],
    call: tuple[str, str, int, str, Outcome, bool],
    place: tuple[str, str, str, str, bool],
    finishes: tuple[str, ...],
) -> Group:
    service, gateway, reason, hidden = origin
    kind, door, status, code, outcome, is_streamed = call
    backend, zone, tenant, mode, is_estimated = place
    is_http = door == HTTP
    optional: Attributes = (
        (names.OPERATION, OPERATIONS.get(kind, "")),
        (names.HTTP_METHOD, "POST" if is_http else ""),
        (names.HTTP_STATUS, status if is_http else 0),
        (names.HTTP_ROUTE, ROUTES.get(kind, "") if is_http else ""),
        (names.FINISH_REASONS, tuple(finish or "none" for finish in finishes)),
        (names.ERROR_TYPE, code or (outcome.value if outcome in ERRORS else "")),
        (names.DOOR, door),
        (names.GATEWAY_ID, gateway),
        (names.BACKEND, backend),
        (names.ZONE, zone),
        (names.TENANT, tenant),
        (names.MODE, mode),
        (names.IS_STREAMED, is_streamed),
        (names.IS_ESTIMATED, is_estimated),
        (names.KEPT_BECAUSE, reason),
    )
    pairs: list[tuple[str, AttributeValue]] = [
        (names.PROVIDER, PROVIDER),
        (names.REQUEST_MODEL, service),
        (names.RESPONSE_MODEL, service),
        (names.OUTCOME, outcome.value),
        (names.SPAN_LAYOUT, LAYOUT),
        *(pair for pair in optional if pair[1]),
    ]
    return Group(hidden.shown(pairs))


def root_attributes(ledger: Ledger, *, dropped_spans: int) -> Attributes:
    """Return what the root says of this request alone."""
    optional: Attributes = (
        (names.MAX_TOKENS, ledger.max_tokens),
        (names.CACHE_READ_TOKENS, ledger.cached_tokens),
        (names.CLIENT_REQUEST_ID, ledger.label),
        (names.TTFT_US, ledger.ttft_us),
        (names.MAX_TOKEN_GAP_US, ledger.max_token_gap_us),
        (names.ROUTE_REASON, ledger.route),
        (names.EXPECTED_CACHED_TOKENS, ledger.expected_cached_tokens),
        (names.PREEMPTIONS, ledger.preemptions),
        (names.RECOMPUTED_TOKENS, ledger.recomputed_tokens),
        (names.DRAFTED_TOKENS, ledger.drafted_tokens),
        (names.ACCEPTED_TOKENS, ledger.accepted_tokens),
        (names.FIRST_STEP, ledger.first_step),
        (names.LAST_STEP, ledger.last_step),
        (names.MODE_CHANGES, ledger.mode_changes),
        (names.DROPPED_SPANS, dropped_spans),
    )
    return [
        (names.RESPONSE_ID, ledger.request),
        (names.INPUT_TOKENS, ledger.prompt_tokens),
        (names.OUTPUT_TOKENS, ledger.completion_tokens),
        *[pair for pair in optional if pair[1]],
    ]
