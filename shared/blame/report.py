"""Which stage explains p50, p95 and p99 of the wall time and of the time to the first token. Pure.

The requests around a quantile are compared with those around the median: the mean time in each stage of the former, minus that of the
latter. What is more divides into shares; stages of which the slow ones have less count as nothing. The quantile itself is nearest-rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from shared.blame.groups import (
    BlockerTotal,
    Group,
    PartsOf,
    blockers,
    group,
    until_first,
    whole,
)
from shared.blame.skew import Skew, skews
from shared.blame.window import LedgerWindow
from shared.ids import RequestId
from shared.messages import STAGES, Ledger, Outcome, Stage

MEDIAN = 0.5
QUANTILES = {0.5: 0.05, 0.95: 0.02, 0.99: 0.005}
"""And how far to both sides of each the requests around it reach, as a share of all."""
MIN_REACH = 2
"""At least as many requests on both sides; fewer where those around the median would be the same as those around p95."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one stage has to do with a quantile."""

    stage: Stage
    us: float
    """Mean of the requests around the quantile."""
    over_us: float
    """Beyond the requests around the median; at the median the mean itself."""
    share: float
    """Of all that is more than at the median; at the median of the whole."""


class Quantile(msgspec.Struct, frozen=True, kw_only=True):
    """One quantile and the requests around it."""

    share: float
    """0.99: p99."""
    us: int
    parts: list[Part]
    """All stages, in their order."""
    around: Group

    @property
    def name(self) -> str:
        """`p99`."""
        return f"p{self.share * 100:g}"

    @property
    def worst(self) -> list[Part]:
        """The stages that explain it, the largest share first; without those that explain nothing."""
        return sorted((p for p in self.parts if p.share > 0), key=lambda p: -p.share)


class Blame(msgspec.Struct, frozen=True, kw_only=True):
    """What explains the time of a window's requests."""

    requests: int
    """All, however they ended."""
    finished: int
    outcomes: dict[Outcome, int]
    is_sampled: bool
    """The figures are from a sample of the finished requests."""
    wall: list[Quantile]
    """p50, p95, p99; empty where no request finished. As the rest it is about requests with a whole answer."""
    first_token: list[Quantile]
    non_compute_share: float
    """Share of all time that is neither prefill nor decode."""
    blockers: list[BlockerTotal]
    """Whose prefills held others up most; of a sample what it shows."""
    prompt_tokens: dict[RequestId, int]
    """Of those blockers whose own ledgers are in the window."""
    skews: list[Skew]
    unfinished: Group | None
    """Those without a whole answer."""


def nearest_rank(size: int, share: float) -> int:
    """Return the index of the smallest of `size` ordered values with at least `share` of them at or below it."""
    # Floating point: 0.95 × 20 must be 19, not a little more.
    return max(0, math.ceil(round(share * size, 9)) - 1)


def _around(ordered: Sequence[Ledger], share: float) -> Sequence[Ledger]:
    apart = nearest_rank(len(ordered), 0.95) - nearest_rank(len(ordered), MEDIAN)
    least = min(MIN_REACH, max(0, apart - 1) // 2)
    reach = max(least, round(QUANTILES[share] * len(ordered)))
    middle = nearest_rank(len(ordered), share)
    return ordered[max(0, middle - reach) : middle + reach + 1]


def _parts(near: Group, median: Group | None) -> list[Part]:
    base = median.us if median is not None else [0.0] * len(STAGES)
    over = [mine - usual for mine, usual in zip(near.us, base, strict=True)]
    more = sum(max(0.0, us) for us in over)
    return [
        Part(
            stage=stage,
            us=near.us[i],
            over_us=over[i],
            share=max(0.0, over[i]) / more if more else 0.0,
        )
        for i, stage in enumerate(STAGES)
    ]


def quantiles(
    ledgers: Sequence[Ledger], value_of: Callable[[Ledger], int], parts_of: PartsOf
) -> list[Quantile]:
    """Return p50, p95 and p99 of a value and what they are made of; nothing without ledgers."""
    if not ledgers:
        return []
    ordered = sorted(ledgers, key=value_of)
    median = group(_around(ordered, MEDIAN), parts_of)
    found = []
    for share in QUANTILES:
        near = median if share == MEDIAN else group(_around(ordered, share), parts_of)
        found.append(
            Quantile(
                share=share,
                us=value_of(ordered[nearest_rank(len(ordered), share)]),
                parts=_parts(near, None if share == MEDIAN else median),
                around=near,
            )
        )
    return found


def _wall_us(ledger: Ledger) -> int:
    return ledger.wall_us


def _ttft_us(ledger: Ledger) -> int:
    return ledger.ttft_us


def blame(window: LedgerWindow) -> Blame:
    """Return what explains the time of the window's requests."""
    finished = window.finished
    wall = quantiles(finished, _wall_us, whole)
    overall = blockers(finished)
    named = {one.request for one in (*overall, *(b for q in wall for b in q.around.blockers))}
    everybody = (*finished, *window.unfinished)
    return Blame(
        requests=window.seen,
        finished=window.outcomes[Outcome.FINISHED],
        outcomes={how: window.outcomes[how] for how in Outcome if window.outcomes[how]},
        is_sampled=window.is_sampled,
        wall=wall,
        first_token=quantiles([one for one in finished if one.ttft_us], _ttft_us, until_first),
        non_compute_share=group(finished).non_compute_share if finished else 0.0,
        blockers=overall,
        prompt_tokens={one.request: one.prompt_tokens for one in everybody if one.request in named},
        skews=skews(sorted(finished, key=_wall_us)),
        unfinished=group(window.unfinished) if window.unfinished else None,
    )
