"""A dictionary that forgets what is old, by weight: two generations, of which the older one goes as a whole.

One that drops its oldest entry each time walks over the places of those it dropped before, thousands at a time.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from typing_extensions import override

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Holds at most `most` in weight, and at least half of that of the newest."""

    __slots__ = ("_most", "_new", "_new_weight", "_old", "_old_weight")

    def __init__(self, most: int) -> None:
        self._most = most
        self._new: dict[K, V] = {}
        self._old: dict[K, V] = {}
        self._new_weight = self._old_weight = 0

    @override
    def __repr__(self) -> str:
        return f"<Recent {len(self)} entries, {self.weight} of {self._most}>"

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    @property
    def weight(self) -> int:
        """Weight of all that is held."""
        return self._new_weight + self._old_weight

    def put(self, key: K, value: V, weight: int = 1) -> None:
        """Hold a value; one of the same key before it still weighs until its generation goes."""
        if self._new_weight + weight > self._most // 2:
            self._old, self._old_weight = self._new, self._new_weight
            self._new, self._new_weight = {}, 0
        self._new[key] = value
        self._new_weight += weight

    def get(self, key: K) -> V | None:
        """Return the newest value of a key, if it is still held."""
        found = self._new.get(key)
        return self._old.get(key) if found is None else found
