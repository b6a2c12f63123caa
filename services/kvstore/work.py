"""Jobs of engines and the parts that they are cut into. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from typing_extensions import override

from services.kvstore.fairness import Kind
from shared.kv.protocol import KEYS_A_PACKET, Done

NEWS_BYTES = 100_000
"""Keys in one message of news: below a packet's bound with what MessagePack adds."""


class Job:
    """One load or save of an engine; ends when its last part has."""

    def __init__(
        self, number: int, kind: Kind, keys: Sequence[bytes], slots: Sequence[int], *, now: float
    ) -> None:
        self.number = number
        self.kind = kind
        self.keys = keys
        self.slots = slots
        self.reason = ""
        self.left = 0
        """Parts that have not ended."""
        self._missing: set[int] = set()
        self._taken_at = now
        self._begun_at: float | None = None

    @override
    def __repr__(self) -> str:
        return f"<Job {self.number} {self.kind} {len(self.keys)} keys left={self.left}>"

    def miss(self, positions: Sequence[int], reason: str) -> None:
        """Note values that are not loaded or kept."""
        self._missing.update(positions)
        if positions and not self.reason:
            self.reason = reason

    def begin(self, now: float) -> None:
        """Note that its wait in the queue is over."""
        if self._begun_at is None:
            self._begun_at = now

    def done(self, now: float) -> Done:
        """Return what the engine is told."""
        begun_at = now if self._begun_at is None else self._begun_at
        return Done(
            job=self.number,
            missing=sorted(self._missing),
            seconds=now - begun_at,
            waited=begun_at - self._taken_at,
            reason=self.reason,
        )


class Bite(msgspec.Struct, frozen=True, eq=False):
    """Part of a job: positions in its keys."""

    engine: int
    job: Job
    positions: tuple[int, ...]


def cut(
    positions: Sequence[int], *, value_bytes: int, bite_bytes: int
) -> Iterator[tuple[int, ...]]:
    """Cut positions into parts of at most `bite_bytes`, and of one value at least."""
    step = max(1, bite_bytes // value_bytes)
    for at in range(0, len(positions), step):
        yield tuple(positions[at : at + step])


def packets(keys: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Cut keys into lists that fit into one message."""
    part: list[bytes] = []
    size = 0
    for key in keys:
        if part and (len(part) >= KEYS_A_PACKET or size + len(key) > NEWS_BYTES):
            yield part
            part, size = [], 0
        part.append(key)
        size += len(key) + 3
    if part:
        yield part
