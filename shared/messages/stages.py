"""Where a request's time goes: the twelve stages, what an engine says of its part, and its batched news about steps."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from shared.ids import EngineId, RequestId, ServiceName
from shared.messages.parts import Count, Figure, Message, Micros, Seconds, Short, Value


class Stage(StrEnum):
    """One of the twelve; each instant of a request belongs to exactly one. The order is that of a request's life."""

    RECEIVE = "receive"
    """First byte read → parsed, validated, authenticated."""
    ADMIT = "admit"
    """→ past the gateway's admission queue."""
    ROUTE = "route"
    """→ engine chosen and reached; also the time from the loss of an engine to the arrival at another."""
    TOKENIZE = "tokenize"
    """Engine: template and tokenizer."""
    QUEUE = "queue"
    """Waiting in the engine until scheduled; before the first token also the pauses between two chunks of the prompt."""
    KV_LOAD = "kv_load"
    """Waiting for KV blocks from a lower tier."""
    PREFILL = "prefill"
    """Steps that computed chunks of the prompt."""
    DECODE = "decode"
    """Steps that produced this request's tokens: as long as a decode-only step of that batch takes."""
    DECODE_WAIT = "decode_wait"
    """After the first token: preempted, computing again what a preemption dropped, not scheduled, or held up by another's prefill."""
    KV_SYNC = "kv_sync"
    """Waiting for KV blocks to be saved, or for other devices."""
    OUTPUT_PARSE = "output_parse"
    """From the last sampled token to the last delta: detokenizing, stop strings, tool calls, JSON."""
    DELIVER = "deliver"
    """Last delta handed to the bus → last byte handed to the client's connection."""


STAGES: tuple[Stage, ...] = tuple(Stage)
ENGINE_STAGES: tuple[Stage, ...] = STAGES[3:11]
"""Those that an engine measures: `tokenize` to `output_parse`."""
EngineStages = Annotated[
    list[Micros], Meta(min_length=len(ENGINE_STAGES), max_length=len(ENGINE_STAGES))
]
StageIndex = Annotated[int, Meta(ge=0, lt=len(STAGES))]


class Blocker(Value, frozen=True, array_like=True):
    """Another request whose prefill lengthened the steps of this one."""

    request: RequestId
    us: Micros


class Spent(Value, frozen=True, array_like=True, gc=False):
    """What the time of one stream at an engine went to, up to now. With the first delta of a stream and with the last one.

    Times are CLOCK_MONOTONIC of the engine's host: comparable with a process whose `boot` is the same, and with no other.
    """

    received_at: Seconds
    """When the submit arrived, in seconds."""
    until: Seconds
    """When this was stamped; the stages sum to `until - received_at`."""
    us: EngineStages
    """Microseconds by stage, in the order of `ENGINE_STAGES`."""
    cached_tokens: Count = 0
    """Prompt tokens whose KV blocks were there already."""
    prefill_tokens: Count = 0
    """Prompt tokens computed, those computed again after a preemption not included."""
    recomputed_tokens: Count = 0
    """Tokens computed again after preemptions."""
    decode_tokens: Count = 0
    """Tokens generated, over all choices."""
    drafted_tokens: Count = 0
    """Speculative tokens proposed."""
    accepted_tokens: Count = 0
    """Speculative tokens that held."""
    preemptions: Count = 0
    first_step: Count = 0
    """Number of the engine step that first computed something of it; 0: none."""
    last_step: Count = 0
    batch_size: Figure = 0.0
    """Choices in a step of its decoding, on average."""
    kv_blocks: Count = 0
    """KV blocks that it held at most."""
    blocked_by: list[Blocker] = []
    """Who held it up most, the worst first; at most `MAX_BLOCKERS`."""
    mode: Short = ""
    """Attention backend and kind of its last step, such as `FLASH_ATTN/graph` or `CPU_ATTN/eager`."""
    mode_changes: Count = 0
    """How often that changed while it ran: a fallback kernel shows here."""
    blocks_us: Micros = 0
    """Of the time in `queue`: how long it waited for KV blocks, not for its turn."""
    host_tokens: Count = 0
    """Of `cached_tokens`, those whose KV blocks came from host memory (L2)."""
    disk_tokens: Count = 0
    """Of `cached_tokens`, those whose KV blocks came from disk (L3)."""


MAX_BLOCKERS = 3


class Move(Value, frozen=True, array_like=True, gc=False):
    """A request entered a stage."""

    request: RequestId
    stage: StageIndex
    """Index into `STAGES`; `deliver` means that the engine has done its part."""
    ago_us: Micros
    """How long before the batch's `at`."""


class StepSummary(Value, frozen=True, array_like=True, gc=False):
    """The engine's steps since the last batch, added up."""

    steps: Count = 0
    busy_us: Micros = 0
    """Time of all steps."""
    wait_us: Micros = 0
    """The part of it beyond decode-only steps, while somebody was decoding."""
    prefill_tokens: Count = 0
    decode_tokens: Count = 0
    recomputed_tokens: Count = 0
    preemptions: Count = 0
    largest_batch: Count = 0
    """Most choices in one step."""
    longest_us: Micros = 0
    """The longest step, and whose prefill was the largest in it."""
    longest_by: RequestId = RequestId("")
    mode: Short = ""
    """See `Spent.mode`."""
    mode_changes: Count = 0


class Orphan(Value, frozen=True, array_like=True):
    """A stream whose gateway is gone, so that nobody writes its ledger."""

    request: RequestId
    trace: dict[str, str]
    spent: Spent


class StageBatch(Message, tag="engine.stages.v1", array_like=True, frozen=True, kw_only=True):
    """News of one engine, each 100 ms while there are any; may be lost: for live views and signals, never for accounts."""

    service: ServiceName
    engine: EngineId
    at: Seconds
    """CLOCK_MONOTONIC of the engine's host, in seconds."""
    unix_s: Seconds
    """Wall time at `at`."""
    moves: list[Move]
    steps: StepSummary
    orphans: list[Orphan] = []
    dropped: Count = 0
    """Moves that found no room in this batch."""


class StepQuery(Message, tag="console.steps.v1", frozen=True, kw_only=True):
    """Ask an engine for the steps of a request. Answered by `StepDetail`."""

    engine: EngineId
    request: RequestId


class TokenRun(Value, frozen=True, array_like=True, gc=False):
    """From this token on each step made `per_step` tokens, until the next run begins."""

    token: Count
    """Position among the generated tokens of the choice, from 0."""
    step: Count
    """Engine step that made it."""
    per_step: Count = 1


class StepSpan(Value, frozen=True, array_like=True, gc=False):
    """A number of consecutive steps, summarised."""

    first_step: Count
    steps: Count
    begin_us: Micros
    """When the first began, since `StepDetail.began_at`."""
    us: Micros
    """Time from there to the end of the last."""
    batch_size: Figure
    """Choices in a step, on average."""
    prefill_tokens: Count
    """Prompt tokens of others computed in these steps."""


class StepDetail(Message, tag="engine.steps.v1", frozen=True, kw_only=True):
    """The steps of one request: the first and last twentieth one by one, those between summarised.

    Per-step values are little-endian arrays: `ms` half floats (milliseconds a step), `batch` unsigned 16-bit.
    """

    engine: EngineId
    request: RequestId
    is_known: bool = False
    """False: the engine never had the request, or no longer remembers it."""
    unix_s: Seconds = 0.0
    """Wall time at `began_at`."""
    began_at: Seconds = 0.0
    """CLOCK_MONOTONIC at the begin of its first step."""
    first_step: Count = 0
    last_step: Count = 0
    head_ms: bytes = b""
    head_batch: bytes = b""
    middle: list[StepSpan] = []
    tail_ms: bytes = b""
    tail_batch: bytes = b""
    runs: list[list[TokenRun]] = []
    """By choice: from token position to step."""
