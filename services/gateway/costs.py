"""What it would take to answer a prompt at an engine, in one currency: tokens of work. Values in, values out.

    what the engine has to do before + the prompt's own work
    − what it need not compute, since it has the beginning of the prompt
    + the way: the round trip beyond that of the nearest engine, and bytes that cross a zone

A second of waiting is worth the tokens that an engine gets done in it, so each part is a number of tokens. What is not known is 0: an
engine that tells nothing of its prefixes is cold, one whose zone or round trip is not known is near.
"""

from __future__ import annotations

import msgspec
from typing_extensions import override

from services.gateway.loadbook import Account
from services.gateway.warmth import Found
from shared.ids import EngineId
from shared.messages import EngineHeartbeat

BYTES_PER_TOKEN = 4
"""As the estimate of a prompt's work has it (`Call.work_tokens`): saved tokens must not be more than were counted."""
ANSWER_TOKEN_BYTES = 48
"""What a token of an answer takes on the bus: 22 bytes in a message with many others, 77 alone in one (`bench/warmth_cost.py`)."""


class CostSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What things are worth in tokens of work."""

    load_unit_tokens: int = 256
    """Differences of cost below about this many tokens hardly count: one short request."""
    warm_share_l1: float = 1.0
    """Part of a prompt token's work that is saved where its block is in the engine's own pool; 0: warmth does not count."""
    warm_share_l2: float = 0.9
    """The same for host memory: the blocks have to be copied."""
    warm_share_l3: float = 0.7
    """The same for the store on disk: the blocks have to be read, and the disk may be busy."""
    guess_share: float = 0.5
    """Part of all that that counts where the engine's backend cannot tell and the engine guesses."""
    far_tokens_per_kb: float = 32.0
    """Price of a KiB that crosses from one zone to another, of prompt or answer; 0: zones do not count.
    By the default a far engine wins when all near ones have some 400 tokens more to do, and the more the longer the prompt."""
    expected_answer_tokens: int = 256
    """Length of an answer for that price, where more is allowed."""
    trip_tokens_per_ms: float = 10.0
    """Price of a millisecond of round trip beyond that of the nearest engine: what an engine computes of a prompt in it."""


class Candidate:
    """An engine that may get the prompt, and what that would cost."""

    __slots__ = ("account", "cached_tokens", "engine", "saved_tokens", "tokens", "trip_us")

    def __init__(
        self,
        engine: EngineId,
        account: Account,
        *,
        tokens: float,
        saved_tokens: float = 0.0,
        cached_tokens: int = 0,
    ) -> None:
        self.engine = engine
        self.account = account
        self.tokens = tokens
        """All of it; above 0."""
        self.saved_tokens = saved_tokens
        """What warmth took off."""
        self.cached_tokens = cached_tokens
        self.trip_us = account.least_trip_us

    @override
    def __repr__(self) -> str:
        return f"<Candidate {self.engine} {self.tokens:.0f} tokens, {self.saved_tokens:.0f} saved>"

    def add_trip(self, nearest_us: int, settings: CostSettings) -> None:
        """Add the way beyond that of the nearest engine."""
        if self.trip_us > nearest_us:
            self.tokens += (self.trip_us - nearest_us) / 1e3 * settings.trip_tokens_per_ms


class Prompt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a prompt's cost depends on besides the engine."""

    work_tokens: int
    """Estimated prompt tokens + tokens allowed to be generated."""
    prompt_bytes: int = 0
    gateways: int = 1
    """Gateways that share the engines."""


def candidate(
    beat: EngineHeartbeat,
    account: Account,
    found: Found | None,
    prompt: Prompt,
    settings: CostSettings,
    *,
    is_far: bool,
) -> Candidate:
    """Return an engine with its cost, but for the round trip."""
    work_tokens = prompt.work_tokens
    tokens: float = (
        account.outstanding_tokens(gateways=prompt.gateways)
        + settings.load_unit_tokens
        + work_tokens
    )
    if is_far:
        tokens += far_tokens(prompt, settings)
    if found is None or not found.total_bytes:
        return Candidate(beat.engine, account, tokens=tokens)
    saved = min(saved_tokens(found, settings), float(work_tokens))
    return Candidate(
        beat.engine,
        account,
        tokens=max(1.0, tokens - saved),
        saved_tokens=saved,
        cached_tokens=min(found.total_bytes // BYTES_PER_TOKEN, work_tokens),
    )


def far_tokens(prompt: Prompt, settings: CostSettings) -> float:
    """Return the price of sending a prompt to another zone, and its answer back."""
    answer_tokens = max(0, prompt.work_tokens - prompt.prompt_bytes // BYTES_PER_TOKEN)
    answer_bytes = min(answer_tokens, settings.expected_answer_tokens) * ANSWER_TOKEN_BYTES
    return (prompt.prompt_bytes + answer_bytes) / 1024 * settings.far_tokens_per_kb


def saved_tokens(found: Found, settings: CostSettings) -> float:
    """Return how much work a prefix saves."""
    worth = (
        found.l1_bytes * settings.warm_share_l1
        + found.l2_bytes * settings.warm_share_l2
        + found.l3_bytes * settings.warm_share_l3
    ) / BYTES_PER_TOKEN
    return worth * settings.guess_share if found.is_guess else worth
