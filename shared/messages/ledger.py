"""The ledger: one compact record of each request, whatever became of it. All later control reads it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from shared.ids import EngineId, GatewayId, RequestId, ServiceName, TenantId
from shared.messages.parts import (
    Count,
    Figure,
    Message,
    Micros,
    Place,
    Priority,
    Seconds,
    Short,
    Status,
    UnixMicros,
    Value,
)
from shared.messages.stages import STAGES, Blocker

AllStages = Annotated[list[Micros], Meta(min_length=len(STAGES), max_length=len(STAGES))]


class Outcome(StrEnum):
    """How a request ended."""

    FINISHED = "finished"
    LEFT = "left"
    """The client went away or cancelled."""
    REFUSED = "refused"
    """Not admitted: full, too late, no engine."""
    EXPIRED = "expired"
    """The deadline of the request passed."""
    INVALID = "invalid"
    """The request itself is at fault: found by the gateway or by an engine."""
    FAILED = "failed"
    """Engines failed, and no other could take over."""
    STOPPED = "stopped"
    """The gateway was stopped and its time to drain was over."""


class Attempt(Value, frozen=True, array_like=True):
    """An engine that had a request and lost it."""

    engine: EngineId
    why: str
    """Verb phrase, such as `is gone`."""
    us: Micros
    """From the submit to the loss."""
    way: str = ""
    """How the answer went on at the next engine: `resume`, `replay`, or empty for from its beginning."""


class ChoiceRecord(Value, frozen=True, array_like=True):
    """One choice of a request."""

    index: Place
    tokens: Count
    finish: str
    """OpenAI's `finish_reason`; empty: cut off."""


class Ledger(Value, frozen=True, array_like=True, gc=False):
    """One request. The stages sum to `wall_us`.

    Of several prompts in one request the one that ended last gives the engine's stages: it was the critical path.
    """

    request: RequestId
    began_unix_us: UnixMicros
    """Wall time of the first byte."""
    wall_us: Micros
    """From the first byte read to the last byte handed to the client's connection, or to the end of the request if it had no answer."""
    us: AllStages
    """Microseconds by stage, in the order of `STAGES`."""
    outcome: Outcome
    priority: Priority
    door: str
    """`http` or `nats`."""
    kind: str
    """`chat` or `completion`; empty where it could not be read."""
    status: Status
    """HTTP status of the answer; of a stream that broke off that of the error event."""
    code: str = ""
    """OpenAI's `code` or `type` of the error, if any; never a message."""
    tenant: TenantId = TenantId("")
    label: str = ""
    """The caller's own request id."""
    trace_id: bytes = b""
    """16 bytes; the caller's where it sent a `traceparent`."""
    span_id: bytes = b""
    """8 bytes: the root span of this request."""
    parent_id: bytes = b""
    """8 bytes: the caller's span; empty: none."""
    trace_flags: Place = 0
    trace_state: str = ""
    is_streamed: bool = False
    has_own_deadline: bool = False
    """The caller set the deadline itself: that it passed is no evidence against an engine."""
    ttft_us: Micros = 0
    """From the first byte read to the first delta here; 0: there was none."""
    engine: EngineId = EngineId("")
    version: Short = ""
    backend: Short = ""
    zone: Short = ""
    attempts: list[Attempt] = []
    choices: list[ChoiceRecord] = []
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    cached_tokens: Count = 0
    prefill_tokens: Count = 0
    recomputed_tokens: Count = 0
    drafted_tokens: Count = 0
    accepted_tokens: Count = 0
    preemptions: Count = 0
    first_step: Count = 0
    last_step: Count = 0
    batch_size: Figure = 0.0
    kv_blocks: Count = 0
    blocked_by: list[Blocker] = []
    mode: Short = ""
    mode_changes: Count = 0
    is_estimated: bool = False
    """Part of the engine's stages was seen from outside only: it died, or its backend cannot tell."""
    max_tokens: Count = 0
    """What the request allowed; 0: no bound."""
    max_token_gap_us: Micros = 0
    """The longest pause between two deltas after the first, as they arrived here."""
    blocks_us: Micros = 0
    """Of the time in `queue`: how long it waited for KV blocks."""
    route: Short = ""
    """Why this engine was chosen: `only`, `best`, `tie`, or `warm` where it has the beginning of the prompt and others would have been
    chosen, or been as good, without that."""
    expected_cached_tokens: Count = 0
    """What the gateway expected the engine to have of the prompt, by its own estimate of tokens."""
    host_tokens: Count = 0
    """Of `cached_tokens`, those whose KV blocks came from host memory (L2)."""
    disk_tokens: Count = 0
    """Of `cached_tokens`, those whose KV blocks came from disk (L3)."""


class LedgerBatch(Message, tag="gateway.ledgers.v1", array_like=True, frozen=True, kw_only=True):
    """The ledgers of one gateway and service, each 100 ms while there are any."""

    service: ServiceName
    """`unknown` where the request named no service that has engines."""
    gateway: GatewayId
    ledgers: list[Ledger]


UNKNOWN_SERVICE = ServiceName("unknown")


class BlackBox(Message, tag="host.blackbox.v1", frozen=True, kw_only=True):
    """What an engine process that died wrote to its black box has been kept; traces of the requests that it lost point to it."""

    engine: EngineId
    service: ServiceName
    path: str
    """Where, on the host of whoever kept it."""
    host: str
    cause: str
    """How the process ended, for people."""
    last_step: Count = 0
    rss_bytes: Count = 0
    free_blocks: Count = 0
    unix_s: Seconds = 0.0
    """Wall time of its last record."""


class FoundBlackBox(BlackBox, tag="engine.blackbox.v1", frozen=True, kw_only=True):
    """The same from an engine that found the box at its start: nobody else looks after the engines here."""
