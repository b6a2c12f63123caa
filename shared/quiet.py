"""Says a thing at most once a minute: for troubles that come by the thousand. Keeps the count of what it held back."""

from __future__ import annotations

from collections.abc import Callable

INTERVAL_S = 60.0
MAX_KEYS = 256


class Quiet:
    """Remembers when each thing was last said; time comes from the caller's clock."""

    def __init__(self, clock: Callable[[], float], *, interval_s: float = INTERVAL_S) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._said: dict[str, tuple[float, int]] = {}

    def due(self, key: str) -> int:
        """Return how many times the thing happened since it was last said, this one included; 0: hold it back."""
        now_s = self._clock()
        said_s, held = self._said.get(key, (float("-inf"), 0))
        if now_s - said_s < self._interval_s:
            self._said[key] = (said_s, held + 1)
            return 0
        if key not in self._said and len(self._said) >= MAX_KEYS:
            self._said.clear()
        self._said[key] = (now_s, 0)
        return held + 1
