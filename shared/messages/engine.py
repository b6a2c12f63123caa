"""What an engine sends: deltas, heartbeats, and the answer to a resend."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from shared.ids import EngineId, GatewayId, ServiceName, StreamNo
from shared.messages.parts import Count, Figure, Message, Place, Seconds, Short, Value
from shared.messages.stages import Spent


class Usage(Value, frozen=True, kw_only=True):
    """Token counts of a finished stream; over all its choices."""

    prompt_tokens: Count
    completion_tokens: Count
    cached_tokens: Count = 0


class TopLogprob(Value, frozen=True, array_like=True):
    """One alternative at a position."""

    token: str
    logprob: float
    token_bytes: bytes


class TokenLogprob(Value, frozen=True, array_like=True):
    """Log probability (natural) of a sampled token and of the alternatives at its position."""

    token: str
    logprob: float
    token_bytes: bytes
    top: list[TopLogprob]


class ToolCallDelta(Value, frozen=True, kw_only=True):
    """A piece of a tool call; `id` and `name` come with the first piece of each index."""

    index: Place
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class Finish(StrEnum):
    """Why a choice ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    TIMEOUT = "timeout"
    """The deadline of the request passed."""
    ERROR = "error"
    """The engine failed; `DeltaExtra.error` says how."""


class StreamError(Value, frozen=True, kw_only=True):
    """Why a stream ended without a whole answer."""

    message: str
    retryable: bool = True
    """Another engine may do better; false where the request itself is at fault."""
    param: str | None = None


class DeltaExtra(Value, frozen=True, kw_only=True):
    """What most deltas do not have."""

    logprobs: list[TokenLogprob] | None = None
    tool_calls: list[ToolCallDelta] | None = None
    stop_reason: str | int | None = None
    """Stop string or stop token id that ended the choice."""
    usage: Usage | None = None
    """Only on the last delta of the stream."""
    error: StreamError | None = None
    spent: Spent | None = None
    """With the first and the last delta of the stream, where the backend can tell."""


class Delta(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """New text of one choice. The stream is over when every choice has finished: that delta has `extra.usage` or `extra.error`."""

    stream: StreamNo
    seq: Count
    """From 0, by one, per stream: a gap is a lost message."""
    choice: Place
    text: str
    token_ids: list[int]
    finish: Finish | None = None
    extra: DeltaExtra | None = None


class TokenBatch(Message, tag="engine.tokens.v1", array_like=True, frozen=True, kw_only=True):
    """All deltas of one engine step for one gateway: the hot message. Loss is found by `Delta.seq` and repaired by `Resend`."""

    gateway: GatewayId
    engine: EngineId
    deltas: list[Delta]


class Resent(Message, tag="engine.resent.v1", frozen=True, kw_only=True):
    """Answer to `Resend`: the deltas from the wanted number on, or `gone` where the engine no longer has them."""

    engine: EngineId
    stream: StreamNo
    deltas: list[Delta] = []
    gone: bool = False


class EngineState(StrEnum):
    """Life of an engine as others see it."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class EngineHeartbeat(Message, tag="engine.heartbeat.v1", frozen=True, kw_only=True):
    """An engine is alive: each 500 ms and on every change of state. Silence means death (see `shared.fleet`)."""

    engine: EngineId
    service: ServiceName
    beat: Count
    """Counts up by one; a lower one than already seen is an old message."""
    state: EngineState
    backend: Literal["vllm", "fake", "openai"]
    name: Short = ""
    """What whoever started the process calls it (`engine-0`); for people, not unique."""
    version: Short = ""
    zone: Short = ""
    host: str = ""
    boot: str = ""
    """Of the host's kernel: processes of one boot share a monotonic clock."""
    max_model_len: Count = 0
    """Context length in tokens."""
    max_streams: Count = 0
    """Choices that can run at the same time (vLLM's `max_num_seqs`)."""
    resumes: bool = False
    """Whether it can go on with an answer that another engine began (`Submit.prior`)."""
    running: Count = 0
    """Choices that are being generated."""
    waiting: Count = 0
    """Choices accepted and not yet begun."""
    outstanding_tokens: Count = 0
    """Upper bound of token work left: prompt tokens not begun + tokens still allowed to be generated."""
    free_blocks: Count = 0
    total_blocks: Count = 0
    block_tokens: Count = 0
    step: Count = 0
    """Engine steps so far."""
    step_age_s: Seconds = 0.0
    """Time since the last step began while there is work; 0 when idle. A growing one is a hung engine."""
    step_bound_s: Seconds = 0.0
    """An older step means that it hangs, by its experience of its own steps; 0: it has none that counts now."""
    tokens_per_s: Figure = 0.0
    """Generated tokens per second, smoothed over about 10 s."""
    reason: str = ""
    """Why it failed or drains."""
    free_runs: Count | None = None
    """Runs of adjacent free blocks; none: not known."""
    largest_free_run: Count | None = None
    """Blocks of the longest of them: what a transfer may take in one piece."""
    promised_blocks: Count | None = None
    """Free blocks that those who run may still come to need; none: nothing is promised there."""
    reserved_blocks: Count | None = None
    """Free blocks, promised to nobody, that only short requests or the interactive class may have."""
    waiting_for_blocks: Count = 0
    """Of `waiting`: choices that wait for blocks."""
    warmth_seq: Count = 0
    """Number of its last `Warmth`; 0: there was none. Who has heard fewer missed some."""
