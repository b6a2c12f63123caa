"""The fleet as one process sees it from heartbeats: who is there and who went silent. Pure: values in, values out, time as data.

A restarted process has a new id, so the old one simply goes silent. Cannot tell a hung process: that one still beats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec

from shared.messages import (
    ENGINE_GONE_S,
    GATEWAY_GONE_S,
    EngineHeartbeat,
    GatewayHeartbeat,
)

B = TypeVar("B", EngineHeartbeat, GatewayHeartbeat)

MAX_SEEN = 4096
"""Of each kind; further ones are not heard until others are forgotten."""
FORGET_S = 60.0
"""How long a silent one is remembered: a beat that was sent before its death and comes late must not bring it back."""


MAX_TICK_S = 0.5
"""A tick that comes later than this after the last one means that this process did not listen meanwhile."""
RETURN_S = 3.0
"""What others get to come back to the bus, at most: the pauses between their attempts grow to two seconds."""


class HearingClock:
    """Time in which others could be heard; their silence is measured on it.

    It stands still while this process did, while the bus is away or does not answer, and then for as long again, since the others have
    to come back as well. Else our own deafness would look like the death of everybody.
    """

    __slots__ = ("_deaf_s", "_ticked_at", "s")

    def __init__(self) -> None:
        self.s = 0.0
        self._deaf_s = 0.0
        self._ticked_at: float | None = None

    def tick(self, now: float, *, is_listening: bool) -> None:
        """Advance; several times a second."""
        passed_s = 0.0 if self._ticked_at is None else now - self._ticked_at
        self._ticked_at = now
        if not is_listening:
            self._deaf_s = min(RETURN_S, self._deaf_s + passed_s)
            return
        heard_s = min(MAX_TICK_S, passed_s)
        pardoned_s = min(self._deaf_s, heard_s)
        self._deaf_s -= pardoned_s
        self.s += heard_s - pardoned_s


class Seen(msgspec.Struct, Generic[B], frozen=True):
    """The latest beat of one process and when it was heard."""

    beat: B
    heard_s: float


class Roster(msgspec.Struct, Generic[B], frozen=True, kw_only=True):
    """All processes of a kind that were heard of lately. Every change returns a new roster."""

    gone_s: float
    """Silence that means death."""
    seen: Mapping[str, Seen[B]] = {}

    def hear(self, beat: B, *, now_s: float) -> Roster[B]:
        """Return the roster after a beat; one that is no newer than the latest of its sender, or finds no room, changes nothing."""
        key = sender_of(beat)
        known = self.seen.get(key)
        if len(self.seen) >= MAX_SEEN if known is None else beat.beat <= known.beat.beat:
            return self
        return self._with({**self.seen, key: Seen(beat, now_s)})

    def forget(self, *, now_s: float) -> Roster[B]:
        """Return the roster without those that have been silent for so long that no old beat of theirs can come any more."""
        kept = {key: one for key, one in self.seen.items() if now_s - one.heard_s < FORGET_S}
        return self if len(kept) == len(self.seen) else self._with(kept)

    def is_alive(self, key: str, *, now_s: float) -> bool:
        """Return whether a process is known and not silent for too long."""
        one = self.seen.get(key)
        return one is not None and now_s - one.heard_s < self.gone_s

    def alive(self, *, now_s: float) -> dict[str, B]:
        """Return the latest beats of the living."""
        return {
            key: one.beat for key, one in self.seen.items() if now_s - one.heard_s < self.gone_s
        }

    def _with(self, seen: Mapping[str, Seen[B]]) -> Roster[B]:
        return Roster(gone_s=self.gone_s, seen=seen)


def engines() -> Roster[EngineHeartbeat]:
    """Return an empty roster of engines."""
    return Roster(gone_s=ENGINE_GONE_S)


def gateways() -> Roster[GatewayHeartbeat]:
    """Return an empty roster of gateways."""
    return Roster(gone_s=GATEWAY_GONE_S)


def sender_of(beat: EngineHeartbeat | GatewayHeartbeat) -> str:
    """Return the id of the process that sent a beat."""
    return beat.engine if isinstance(beat, EngineHeartbeat) else beat.gateway
