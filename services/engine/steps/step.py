"""What a backend says of one step: who was computed in it and who was not. One record for each step, whatever the batch's size.

A choice that decodes is not named: it is one of `decodes`, as in the step before. Named are beginnings, ends and exceptions.
"""

from __future__ import annotations

import msgspec

from services.engine.steps.blame import NOTABLE
from services.engine.warmth.blocks import BlockNews
from shared.ids import RequestId


class Prefill(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A chunk of a prompt in one step."""

    ref: str
    """The backend's name of the choice."""
    tokens: int
    """Prompt tokens computed for the first time."""
    again: int = 0
    """Tokens computed that a preemption had dropped."""
    is_last: bool = True
    """The choice makes a token at the end of this step."""
    cached: int = 0
    """Prompt tokens that were there already; counts with a choice's first chunk."""
    blocks: int = 0
    """KV blocks that it holds now; only where that is known."""
    host: int = 0
    """Of `cached`, tokens whose blocks came from host memory."""
    disk: int = 0
    """Of `cached`, tokens whose blocks came from disk."""


class Draft(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Speculation of one choice in one step."""

    ref: str
    drafted: int
    accepted: int


class Held(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """KV blocks that a choice held when it ended."""

    ref: str
    blocks: int


class Queued(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A choice that had to wait for KV blocks before it could start."""

    ref: str
    us: int


class KvMoves(msgspec.Struct, array_like=True, gc=False):
    """What went between the KV tiers since the last record with such a part, in bytes, and how the tier on disk stands."""

    to_host: int = 0
    from_host: int = 0
    to_disk: int = 0
    from_disk: int = 0
    failed: int = 0
    """Should have come from disk, and did not."""
    dropped: int = 0
    """Should have gone to disk, and did not: too much was waiting."""
    given_up: int = 0
    """Loads from disk that took too long."""
    aside: int = 0
    """Bytes of host memory that nobody may use now, since the store may still write there."""
    disk_blocks: int = -1
    """Blocks that can be loaded from disk now; -1: no store is connected."""


class Step(msgspec.Struct, array_like=True):
    """One step of an engine. Times are of one monotonic clock, in seconds. Filled where it is made, and not changed any more in a book."""

    number: int
    """Counts up by one from 1."""
    scheduled_at: float
    """When it was decided who is in it; with asynchronous stepping before the step before it ended."""
    ended_at: float
    """When its tokens were there."""
    decodes: int = 0
    """Choices in it that had their first token before."""
    prefills: list[Prefill] = []
    preempted: list[str] = []
    """Choices that lost their blocks when this step was made."""
    unscheduled: list[str] = []
    """Choices that hold their place in the batch, have had a token, and are not in this step."""
    loading: list[str] = []
    """Choices that began to wait for KV blocks from a lower tier when this step was made."""
    loaded: list[str] = []
    """Choices whose blocks have come by the end of this step."""
    drafts: list[Draft] = []
    held: list[Held] = []
    mode: str = ""
    """Attention backend and kind, such as `FLASH_ATTN/graph`."""
    free_blocks: int = 0
    """Free blocks of the KV pool at the end."""
    total_blocks: int = 0
    free_runs: int | None = None
    """Runs of adjacent free blocks, of the last look at the whole pool; none: not known."""
    largest_free_run: int | None = None
    """Blocks of the longest of them."""
    promised_blocks: int | None = None
    """Blocks that those who run may still come to need; none: nothing is promised here."""
    reserved_blocks: int | None = None
    """Free blocks that are promised to nobody, and kept for short requests or the interactive class."""
    blocked: int = 0
    """Choices that waited for blocks when this step was made."""
    queued: list[Queued] = []
    """Choices that start with this step, and had to wait for blocks."""
    blocks: BlockNews | None = None
    """Blocks that came or went, and prompts whose blocks are all there; only of backends that tell (`Limits.tells_blocks`)."""
    kv: KvMoves | None = None
    """None: nothing moved."""


def us_of(seconds: float) -> int:
    """Return a stamp in whole microseconds."""
    return int(seconds * 1e6 + 0.5)


class Span:
    """The time of one step, and how it was shared out."""

    __slots__ = (
        "begin_us",
        "blocker",
        "end_us",
        "largest",
        "made_us",
        "prompt_tokens",
        "step",
        "wait_us",
    )

    def __init__(self, step: Step, begin_us: int) -> None:
        self.step = step
        self.begin_us = begin_us
        """End of the step before."""
        self.end_us = max(us_of(step.ended_at), begin_us)
        self.made_us = min(max(us_of(step.scheduled_at), begin_us), self.end_us)
        """From when on it computed those who are new in it."""
        self.wait_us = 0
        """The part of it in which those that decoded waited for prompts."""
        self.prompt_tokens = 0
        self.largest: Prefill | None = None
        self.blocker = RequestId("")
        """Whose prefill the wait is charged to."""
        if step.prefills:
            most = -1
            for each in step.prefills:
                tokens = each.tokens + each.again
                self.prompt_tokens += tokens
                if tokens > most:
                    most, self.largest = tokens, each

    @property
    def us(self) -> int:
        """Length for those who were in the step before."""
        return self.end_us - self.begin_us

    @property
    def is_notable(self) -> bool:
        """Whether somebody is to blame for the wait."""
        return self.wait_us * NOTABLE >= self.us - self.wait_us and self.wait_us > 0

    @property
    def busy_us(self) -> int:
        """Length without the time before it was made."""
        return self.end_us - self.made_us
