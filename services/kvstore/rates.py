"""Which of several mirrors reads: the one where it will be done first, by measured rates. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

WEIGHT = 0.2
PROBE_EVERY = 64
"""One read in so many goes to another mirror than the best, so that one that has become faster is found."""


class Transfer:
    """Bytes in one direction: all of them, and how many a second, smoothed."""

    def __init__(self) -> None:
        self.bytes = 0
        self.bytes_per_s = 0.0

    def measure(self, size: int, seconds: float) -> None:
        """Take in one transfer."""
        self.bytes += size
        if size <= 0 or seconds <= 0:
            return
        new = size / seconds
        old = self.bytes_per_s
        self.bytes_per_s = new if not old else old + WEIGHT * (new - old)


class Choice(msgspec.Struct, frozen=True):
    """A mirror that could read."""

    mirror: int
    bytes_per_s: float
    """0: never measured."""
    waiting_bytes: int
    """What it has under way."""


def choose(choices: Sequence[Choice], size: int, *, turn: int) -> int:
    """Return the mirror to read from; `turn` counts the calls. There is at least one choice."""
    unmeasured = [c for c in choices if not c.bytes_per_s]
    if unmeasured:
        return unmeasured[0].mirror
    ranked = sorted(choices, key=lambda c: ((c.waiting_bytes + size) / c.bytes_per_s, c.mirror))
    if turn % PROBE_EVERY == PROBE_EVERY - 1 and len(ranked) > 1:
        return ranked[1 + turn // PROBE_EVERY % (len(ranked) - 1)].mirror
    return ranked[0].mirror
