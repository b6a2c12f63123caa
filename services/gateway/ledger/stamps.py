"""What is noted of a request while it runs: moments on this gateway's clock of stamps, in seconds, and what engines say of their part.

Values only: no clock in here.
"""

from __future__ import annotations

import msgspec

from services.gateway.routing import Route
from shared.ids import EngineId
from shared.messages import Chain, EngineHeartbeat, Spent

NEVER = -1.0
"""A moment that has not come; no clock here shows one below zero."""


class Stay(msgspec.Struct, gc=False):
    """One attempt of one prompt at one engine."""

    engine: EngineId
    beat: EngineHeartbeat | None
    """The engine's heartbeat when the prompt was sent."""
    submitted_at: float
    way: str = ""
    """How an answer that another engine began was to go on here; see `Attempt.way`."""
    is_same_clock: bool = False
    """The engine's host was booted with ours: its moments compare with ours."""
    trip_us: int = -1
    """Least time seen that a message to this engine and its reply were on their way; -1: not known."""
    route: str = ""
    """Why this engine was chosen; see `RouteReason`."""
    expected_cached_tokens: int = 0
    """What it was expected to have of the prompt."""
    prompt_tokens: int = 0
    is_taken: bool = False
    """The engine accepted it or sent a delta."""
    first_at: float = NEVER
    """Arrival of the first delta."""
    last_at: float = NEVER
    """Arrival of the last delta, of those that came."""
    left_at: float = NEVER
    """When the engine was given up."""
    why: str = ""
    """Why it was given up; a verb phrase."""
    spent: Spent | None = None
    """The latest that the engine said of its part."""
    told_at: float = NEVER
    """Arrival of the delta that said it."""


class Stays(msgspec.Struct, gc=False):
    """The attempts of one prompt, and the rhythm of its deltas."""

    chain: Chain | None = None
    """What the prompt begins with, once it was needed."""
    route: Route | None = None
    """The latest choice of an engine."""
    present: Stay | None = None
    """The attempt under way, or the last one."""
    lost: list[Stay] = []
    """Those of engines that had it and lost it."""
    last_at: float = float("inf")
    """Arrival of the last delta over all attempts; infinity before the first."""
    max_gap_s: float = 0.0
    """Longest time between two deltas."""

    def taken(self, prompt_tokens: int) -> None:
        """The engine has accepted it."""
        stay = self.present
        if stay is not None:
            stay.is_taken = True
            stay.prompt_tokens = prompt_tokens

    def answered(self, now: float) -> None:
        """The first delta of this attempt is here."""
        stay = self.present
        if stay is not None:
            stay.is_taken = True
            stay.first_at = now

    def tell(self, spent: Spent, now: float) -> None:
        """Note what the engine says of its part so far."""
        stay = self.present
        if stay is not None:
            stay.spent = spent
            stay.told_at = now

    def leave(self) -> None:
        """No more deltas of this attempt are taken."""
        stay = self.present
        if stay is not None and stay.first_at >= 0:
            stay.last_at = self.last_at

    def give_up(self, why: str, *, now: float) -> None:
        """The engine did not take it, or lost it."""
        stay = self.present
        if stay is not None and stay.left_at < 0:
            stay.left_at = now
            stay.why = why
            if stay.is_taken:
                self.lost.append(stay)
