"""A short memory: the newest entries up to a count, each up to an age.

Remembers answers (a submit that comes twice gets the same one) and cancels that overtook their submit.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from typing_extensions import override

V = TypeVar("V")


class Recall(Generic[V]):
    """Bounded by count and age; the oldest entry goes first."""

    def __init__(self, *, max_entries: int, max_age_s: float) -> None:
        self._max_entries = max_entries
        self._max_age_s = max_age_s
        self._entries: dict[str, tuple[float, V]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @override
    def __repr__(self) -> str:
        return f"<Recall {len(self._entries)}/{self._max_entries}>"

    def put(self, key: str, value: V, *, now: float) -> None:
        """Remember `value`; a second `put` of a key replaces the first and renews its age."""
        self._entries.pop(key, None)
        self._entries[key] = (now, value)
        self.forget_old(now)
        if len(self._entries) > self._max_entries:
            del self._entries[next(iter(self._entries))]

    def get(self, key: str, *, now: float) -> V | None:
        """Return what is remembered of `key`."""
        entry = self._entries.get(key)
        if entry is None or now - entry[0] > self._max_age_s:
            return None
        return entry[1]

    def forget_old(self, now: float) -> None:
        """Drop what is past its age. Insertion order is age order, so this looks at dropped ones only."""
        while self._entries:
            key, (put_at, _) = next(iter(self._entries.items()))
            if now - put_at <= self._max_age_s:
                return
            del self._entries[key]
