"""How a pool of KV blocks is shared out: what is kept for short requests and for the better classes, and how long anybody waits. Pure."""

from __future__ import annotations

import msgspec

SHORT_PART = 8
"""A request of up to this part of the context is short: with less, ordinary chats of a small model would be long."""
KEPT_PART = 4
"""Part of the pool that is kept for short ones: at least two of the longest short ones fit even where the pool is one context."""
CLASS_PART = 8
"""Part of the pool that is kept for the interactive class."""
RANKS = 3
"""Interactive, default, batch: the order of `Priority`, and vLLM's priorities 0, 1, 2."""


class ReserveSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who gets blocks of the KV pool when there are not enough for all."""

    enabled: bool = True
    """No: vLLM's own order, in which a long request at the head of the queue holds up all behind it."""
    short_tokens: int | None = None
    """A request of up to so many tokens, prompt and answer together, is short; none: an eighth of the context."""
    short_blocks: int | None = None
    """Blocks that only short requests may have; none: a fourth of the pool, or what the longest context leaves of it if that is less."""
    interactive_blocks: int | None = None
    """Blocks that only the interactive class may have; none: an eighth of the pool, within the same bound."""
    default_blocks: int | None = None
    """Blocks that only the interactive and the default class may have, beside those above; none: a sixteenth of the pool."""
    interactive_wait_s: float = 5.0
    """An interactive request that has waited so long goes before all others: what becomes free is gathered for it."""
    default_wait_s: float = 15.0
    """The same for the default class."""
    batch_wait_s: float = 120.0
    """The same for the batch class: this is what keeps it from waiting for ever behind the others."""
    open_answer_tokens: int | None = None
    """Tokens promised to an answer without a bound of its own (`max_tokens` up to the end of the context). More is given as there are
    blocks, and the youngest is preempted where there are none. None: what 95% of such answers needed of late.
    Answers with a bound are promised all of it."""
    long_chunk_tokens: int | None = None
    """Prompt tokens that one long request may have computed in a step while others are there; none: a fourth of the step's budget, which
    leaves room for short prompts beside it. 0: all of the budget."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The same in blocks of one pool."""

    total: int
    """Blocks of the pool."""
    short_tokens: int
    short_blocks: int = 0
    interactive_blocks: int = 0
    default_blocks: int = 0
    waits_s: tuple[float, float, float] = (5.0, 15.0, 120.0)
    """By rank."""


def plan_of(
    settings: ReserveSettings, *, total: int, context_blocks: int, context_tokens: int
) -> Plan:
    """Return the plan for a pool. Whatever is kept, one request that fills the context always fits beside it."""
    spare = max(0, total - context_blocks)

    def kept(wanted: int | None, part: int, room: int) -> int:
        return min(total // part if wanted is None else max(0, wanted), room)

    interactive = kept(settings.interactive_blocks, CLASS_PART, spare)
    return Plan(
        total=total,
        short_tokens=settings.short_tokens
        if settings.short_tokens is not None
        else context_tokens // SHORT_PART,
        short_blocks=kept(settings.short_blocks, KEPT_PART, spare),
        interactive_blocks=interactive,
        default_blocks=kept(settings.default_blocks, 2 * CLASS_PART, spare - interactive),
        waits_s=(
            settings.interactive_wait_s,
            settings.default_wait_s,
            settings.batch_wait_s,
        ),
    )
