"""What slow requests have more often than all: an engine, a version, a class, a prompt length. Pure.

A trait is named where three in ten of the slowest tenth have it, half as many again as of all, and where that would come by chance
less than once in a thousand times: the upper tail of the binomial distribution, P(X ≥ k) with n slow ones and the trait's share of all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import pairwise

import msgspec

from shared.messages import Ledger

SLOW_SHARE = 0.1
MIN_SLOW = 5
"""Fewer slow requests say nothing about what they share."""
MIN_LIFT = 1.5
MAX_CHANCE = 0.001
MIN_SHARE = 0.3
"""A trait of fewer of the slow requests explains too little of them."""
PROMPT_STEPS = (256, 1024, 4096, 16_384)
"""Borders of the strata of prompt lengths, in tokens."""


class Trait(StrEnum):
    """What requests are told apart by."""

    ENGINE = "engine"
    VERSION = "version"
    CLASS = "class"
    PROMPT = "prompt"


class Skew(msgspec.Struct, frozen=True, kw_only=True):
    """A trait that slow requests have too often."""

    trait: Trait
    value: str
    slow: int
    """Slow requests that have it."""
    of_slow: int
    """All slow requests."""
    share_of_all: float


def stratum(prompt_tokens: int) -> str:
    """Return the stratum of a prompt length: `under 256`, `256 to 1,023` … `16,384 or more` tokens."""
    if prompt_tokens < PROMPT_STEPS[0]:
        return f"under {PROMPT_STEPS[0]:,}"
    for low, high in pairwise(PROMPT_STEPS):
        if prompt_tokens < high:
            return f"{low:,} to {high - 1:,}"
    return f"{PROMPT_STEPS[-1]:,} or more"


TRAITS: dict[Trait, Callable[[Ledger], str]] = {
    Trait.ENGINE: lambda ledger: ledger.engine,
    Trait.VERSION: lambda ledger: ledger.version,
    Trait.CLASS: lambda ledger: ledger.priority,
    Trait.PROMPT: lambda ledger: stratum(ledger.prompt_tokens),
}


def chance(hits: int, tries: int, share: float) -> float:
    """Return P(X ≥ hits) for a binomial X of `tries` and `share`."""
    if hits <= 0 or share >= 1:
        return 1.0
    if share <= 0:
        return 0.0
    return min(1.0, sum(_mass(k, tries, share) for k in range(hits, tries + 1)))


def _mass(hits: int, tries: int, share: float) -> float:
    ways = math.lgamma(tries + 1) - math.lgamma(hits + 1) - math.lgamma(tries - hits + 1)
    return math.exp(ways + hits * math.log(share) + (tries - hits) * math.log1p(-share))


def skews(ordered: Sequence[Ledger]) -> list[Skew]:
    """Return the traits that the slowest tenth has too often, the most striking first; `ordered` rises in time."""
    slow = ordered[len(ordered) - math.ceil(SLOW_SHARE * len(ordered)) :]
    if len(slow) < MIN_SLOW:
        return []
    found = []
    for trait, value_of in TRAITS.items():
        of_all = Counter(map(value_of, ordered))
        for value, hits in Counter(map(value_of, slow)).items():
            share = of_all[value] / len(ordered)
            odds = chance(hits, len(slow), share)
            often = hits >= max(MIN_LIFT * share, MIN_SHARE) * len(slow)
            if value and often and odds < MAX_CHANCE:
                skew = Skew(
                    trait=trait, value=value, slow=hits, of_slow=len(slow), share_of_all=share
                )
                found.append((odds, trait, value, skew))
    return [skew for *_, skew in sorted(found, key=lambda item: item[:3])]
