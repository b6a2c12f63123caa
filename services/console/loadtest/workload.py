"""What to send and when: prompts of a given token length and arrival times. Pure; randomness comes from a passed seed."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec

NOUNS = (
    "time year people way day man thing woman life child world school state family student group country problem hand part "
    "place case week company system program question work government number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father power hour "
    "game line end member law car city community name president team minute idea kid body information back parent face others "
    "level office door health person art war history party result change morning reason research girl guy moment air teacher "
    "force education foot boy age policy music market sense nation plan college interest death experience effect use class"
)
WORDS = tuple(NOUNS.split())
"""Frequent English nouns: with a leading space each is one token in all usual byte-pair vocabularies."""


class LoadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One load test."""

    url: str = "http://127.0.0.1:8000"
    """Base address without `/v1`."""
    model: str | None = None
    """`None`: the first that the server lists."""
    api_key: str | None = None
    concurrency: int = 32
    """Requests in flight; with `rate_per_s` the upper bound of them."""
    input_tokens: int = 512
    output_tokens: int = 256
    rate_per_s: float | None = None
    """Poisson arrivals per second; `None`: a new request as soon as one ends."""
    duration_s: float | None = None
    requests: int | None = None
    """Stop after so many requests; with neither this nor a duration: four per concurrent client."""
    token_index: int = 10
    """Which token's arrival is reported beside the first."""
    ignore_eos: bool = True
    """Ask for the full output length (an extension that vLLM and Headrace take; off for servers that refuse it)."""
    timeout_s: float = 600.0
    seed: int = 0

    @property
    def total_requests(self) -> int | None:
        """How many requests end the run, if a number does."""
        if self.requests is None and self.duration_s is None:
            return 4 * self.concurrency
        return self.requests


def prompt(words: int, *, rng: random.Random) -> str:
    """Return `words` random words; no two prompts share a prefix by more than chance, so that prefix caches do not flatter."""
    return " ".join(rng.choices(WORDS, k=max(1, words)))


def words_for(tokens: int, *, overhead_tokens: int) -> int:
    """Return how many words give a prompt of `tokens`, where the template adds `overhead_tokens`."""
    return max(1, tokens - overhead_tokens)


def arrivals(rate_per_s: float, *, rng: random.Random) -> Iterator[float]:
    """Yield arrival times in seconds from the start of a Poisson process."""
    at_s = 0.0
    while True:
        at_s += rng.expovariate(rate_per_s)
        yield at_s
