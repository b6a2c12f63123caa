"""The port to an inference backend. Real vLLM, the fake and any OpenAI-compatible server implement it; one contract suite tests them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from services.engine.stepbook import StepBook
from shared.blackbox.layout import DeviceMemory
from shared.ids import RequestId
from shared.messages import (
    DeltaExtra,
    Finish,
    Prior,
    Priority,
    Prompt,
    RefuseReason,
    Sampling,
    Spent,
)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt to answer."""

    key: str
    """Unique in this engine's life; made by the shell from gateway and stream number, never by a caller."""
    request: RequestId
    prompt: Prompt
    sampling: Sampling
    priority: Priority
    trace: dict[str, str]
    received_at: float = 0.0
    """When its submit arrived, on `shared.clock.stamp_clock`: from then on its time is accounted for. 0: when `submit` is called."""
    prior: tuple[Prior, ...] = ()
    """Choices to go on with, and no others (see `Submit.prior`). Only where `Limits.resumes`."""
    prefix_salt: str = ""
    """Computed prefixes are reused among jobs of the same salt only."""


class Piece(msgspec.Struct, frozen=True, gc=False):
    """What one step produced for one choice. The last piece of a job (every choice finished) carries `extra.usage` or `extra.error`.

    The first and the last one carry `extra.spent`.
    """

    choice: int
    text: str
    token_ids: list[int]
    finish: Finish | None = None
    extra: DeltaExtra | None = None


Sink = Callable[[str, Piece], None]
"""Called on the loop with (job key, piece); must not raise or block. Nothing comes after the last piece or after `cancel`."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the backend can take; known once it has started."""

    backend: Literal["vllm", "fake", "openai"]
    model: str
    version: str
    max_model_len: int
    max_streams: int
    total_blocks: int = 0
    block_tokens: int = 0
    block_bytes: int = 0
    """Bytes of a block over all layers; 0: not known."""
    resumes: bool = False
    """Whether jobs may have `prior`."""
    store: str = ""
    """Names the store that its third tier reads from, the same for all engines that find the same blocks there; empty: there is none."""
    tells_blocks: bool = False
    """Whether its steps say which blocks are there (`Step.blocks`); one that caches no prefixes tells of none."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How busy the backend is now."""

    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    free_runs: int | None = None
    """Runs of adjacent free blocks; none: not known."""
    largest_free_run: int | None = None
    """Blocks of the longest of them."""
    promised_blocks: int | None = None
    """Free blocks that those who run may still come to need; none: nothing is promised here."""
    reserved_blocks: int | None = None
    """Free blocks, promised to nobody, that only short requests or the interactive class may have."""
    blocked: int = 0
    """Of those that wait: how many do so for blocks."""
    step: int = 0
    step_age_s: float = 0.0


Devices = Callable[[], list[DeviceMemory]]
"""Reads the memory of the accelerators. Takes well below a millisecond each, raises nothing."""


class RefusedError(Exception):
    """The job was not taken; nothing of it remains."""

    def __init__(
        self,
        reason: RefuseReason,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.param = param
        self.retry_after_s = retry_after_s


class EngineFailedError(Exception):
    """The backend is dead or cannot start; the process should end. The message says what to change."""


class InferenceEngine(Protocol):
    """A backend that turns prompts into tokens."""

    @property
    def book(self) -> StepBook:
        """Where its time goes: each step it makes arrives there. There from the beginning, to be read and listened to only."""
        ...

    async def start(self, sink: Sink) -> Limits:
        """Load and become ready. Called once. Raises `EngineFailedError`.

        May be interrupted (`asyncio.CancelledError`); then, as after a failure, `stop` frees what was begun.
        """
        ...

    async def submit(self, job: Job) -> int:
        """Render, tokenize, check and enqueue a job; return its prompt length in tokens.

        Pieces follow through the sink, maybe before the return.

        Raises `RefusedError`, `EngineFailedError`. The same key twice is refused as INVALID.
        One that is interrupted (`asyncio.CancelledError`) leaves nothing behind: no piece follows, no place is held.
        The shell calls `cancel` after it all the same, since it cannot know whether the interruption came too late.
        """
        ...

    def cancel(self, key: str) -> None:
        """Stop a job within one step and free what it holds. Unknown or finished keys are ignored; legal while `submit` is under way."""
        ...

    def spent(self, key: str) -> Spent | None:
        """Return what the time of a job went to until now; none where it is unknown, over or cancelled. Cheap, no side effect."""
        ...

    def load(self) -> Load:
        """Return the current load. Cheap, no side effect. Legal from the end of `start` on, also when the backend is dead."""
        ...

    async def failed(self) -> str:
        """Return, only once the backend is dead, why it died."""
        ...

    async def stop(self) -> None:
        """Abort what runs and free everything within a few seconds. A second call changes nothing; nor does one before `start`."""
        ...


def told(piece: Piece, spent: Spent | None) -> Piece:
    """Return the piece with what the time of its job went to."""
    if spent is None:
        return piece
    old = piece.extra
    extra = msgspec.structs.replace(old, spent=spent) if old else DeltaExtra(spent=spent)
    return Piece(piece.choice, piece.text, piece.token_ids, piece.finish, extra)
