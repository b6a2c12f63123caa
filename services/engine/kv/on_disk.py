"""Which blocks this engine has told that they are on disk (L3), so that gateways can send prompts where their beginning is. Pure.

Told are blocks of requests that were here: of others nobody could say which prompt they belong to. That one is gone is found by going
round among those told, a few with each look, since the store tells all keys of the host, and most of them are of no interest here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from typing_extensions import override

MOST_TOLD = 32_768
"""Beyond it the ones told first count as gone."""
LOOKS = 64
"""Blocks looked at each time: all of them within seconds where steps take milliseconds, for some microseconds a step."""


class OnDisk:
    """What was told, and what is to be told next."""

    def __init__(self, *, most: int = MOST_TOLD) -> None:
        self._most = most
        self._told: set[bytes] = set()
        self._round: deque[bytes] = deque()
        self._came: dict[bytes, None] = {}
        self._gone: dict[bytes, None] = {}

    @override
    def __repr__(self) -> str:
        return f"<OnDisk {len(self._told)} told, {len(self._came)} and {len(self._gone)} to tell>"

    def there(self, keys: Iterable[bytes]) -> None:
        """Note blocks that can be loaded."""
        for key in keys:
            if key in self._told:
                continue
            self._told.add(key)
            self._round.append(key)
            if key in self._gone:
                del self._gone[key]  # nobody has heard that it went
            else:
                self._came[key] = None
        while len(self._round) > self._most:
            self._drop(self._round.popleft())

    def look(self, keys: Collection[bytes]) -> None:
        """Find out of a few whether they are still among the `keys` that can be loaded."""
        for _ in range(min(LOOKS, len(self._round))):
            key = self._round.popleft()
            if key in keys:
                self._round.append(key)
            else:
                self._drop(key)

    def take(self) -> tuple[list[bytes], list[bytes]]:
        """Return which came and which are gone since the last call; none is in both."""
        came, gone = list(self._came), list(self._gone)
        self._came.clear()
        self._gone.clear()
        return came, gone

    def _drop(self, key: bytes) -> None:
        self._told.discard(key)
        if key in self._came:
            del self._came[key]
        else:
            self._gone[key] = None
