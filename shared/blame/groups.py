"""Requests taken together: their mean composition by stage, and what else they have in common. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from shared.ids import RequestId
from shared.messages import STAGES, Ledger, Stage

COMPUTE = frozenset((STAGES.index(Stage.PREFILL), STAGES.index(Stage.DECODE)))
MAX_BLOCKERS_NAMED = 5
HELD_UP_SHARE = 0.05
BEFORE_FIRST = STAGES.index(Stage.PREFILL) + 1
"""Stages up to `prefill` come before the first token; what is left of the wait for it is the way of the first delta."""
FIRST_DELTA_WAY = STAGES.index(Stage.DELIVER)
MAX_OVERLAP = 1.1
"""Early stages that sum to this much more than the time to the first token were not all before it."""

PartsOf = Callable[[Ledger], Sequence[float] | None]
"""Microseconds by stage of one request, or that they cannot be told."""


class BlockerTotal(msgspec.Struct, frozen=True, kw_only=True):
    """A request whose prefill held others up."""

    request: RequestId
    us: int
    """Over all that it held up."""
    held: int
    """How many those are."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Some requests; means are per request."""

    requests: int
    us: list[float]
    """By stage, mean."""
    completion_tokens: float
    prompt_tokens: float
    prefill_tokens: float
    batch_size: float
    preempted: int
    """How many were, at least once."""
    recomputed_tokens: int
    """In all."""
    moved: int
    """How many lost an engine."""
    held_up: int
    """How many waited for the prefills of others for a twentieth of their time or more."""
    blockers: list[BlockerTotal]
    """The worst first, at most five."""

    @property
    def total_us(self) -> float:
        """Mean time."""
        return sum(self.us)

    @property
    def non_compute_share(self) -> float:
        """Share of the time that is neither prefill nor decode; 0 where there was no time."""
        total = self.total_us
        return 1 - sum(self.us[i] for i in COMPUTE) / total if total else 0.0


def whole(ledger: Ledger) -> Sequence[float]:
    """Return where the wall time of a request went."""
    return ledger.us


def until_first(ledger: Ledger) -> Sequence[float] | None:
    """Return where the time to its first token went.

    A ledger has sums over the whole request. All of the early stages lies before the first token, unless an engine was lost after it:
    then the split cannot be told.
    """
    early = ledger.us[:BEFORE_FIRST]
    total = sum(early)
    if total > ledger.ttft_us * MAX_OVERLAP and total > 0:
        return None
    parts = [0.0] * len(STAGES)
    parts[:BEFORE_FIRST] = early
    parts[FIRST_DELTA_WAY] = max(0, ledger.ttft_us - total)
    return parts


def _is_held_up(ledger: Ledger) -> bool:
    held_us = sum(one.us for one in ledger.blocked_by)
    return held_us > 0 and held_us >= HELD_UP_SHARE * ledger.wall_us


def group(ledgers: Sequence[Ledger], parts_of: PartsOf = whole) -> Group:
    """Return what the requests have in common. Raises `ValueError` without any."""
    if not ledgers:
        raise ValueError("a group has at least one request")
    parts = [found for ledger in ledgers if (found := parts_of(ledger)) is not None]
    counted = max(1, len(parts))
    number = len(ledgers)
    return Group(
        requests=number,
        us=[sum(column) / counted for column in zip(*parts, strict=True)] or [0.0] * len(STAGES),
        completion_tokens=sum(one.completion_tokens for one in ledgers) / number,
        prompt_tokens=sum(one.prompt_tokens for one in ledgers) / number,
        prefill_tokens=sum(one.prefill_tokens for one in ledgers) / number,
        batch_size=sum(one.batch_size for one in ledgers) / number,
        preempted=sum(one.preemptions > 0 for one in ledgers),
        recomputed_tokens=sum(one.recomputed_tokens for one in ledgers),
        moved=sum(bool(one.attempts) for one in ledgers),
        held_up=sum(_is_held_up(one) for one in ledgers),
        blockers=blockers(ledgers),
    )


def blockers(ledgers: Sequence[Ledger]) -> list[BlockerTotal]:
    """Return whose prefills held these requests up, the worst first."""
    totals: dict[RequestId, tuple[int, int]] = {}
    for ledger in ledgers:
        for one in ledger.blocked_by:
            us, held = totals.get(one.request, (0, 0))
            totals[one.request] = (us + one.us, held + 1)
    worst = sorted(totals.items(), key=lambda item: (-item[1][0], item[0]))[:MAX_BLOCKERS_NAMED]
    return [BlockerTotal(request=name, us=us, held=held) for name, (us, held) in worst]
