"""Where the time of a request went: its stamps, and what engines said of their part, become microseconds by stage. Pure.

All moments are whole microseconds since the first byte. One pointer goes along them: what it passes goes to the stage of that piece.
So the stages sum to the wall time exactly and none is negative, whatever the clocks say.

An engine of our own boot has our clock: its moments stand on our line. Of another one only durations count, and what is left between
the submit and the arrival of the last delta is what the two ways took: the way there gets half of the least round trip seen, the way
back the rest.

Time at an engine that was lost, or that cannot tell, is seen from outside: the submit to the first delta is prefill, from there to the last
one is decode. From the last sign of life of a lost engine to the arrival at the next one is route.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.gateway.ledger.stamps import Stay
from shared.messages import ENGINE_STAGES, STAGES, Spent, Stage

SLACK_US = 2_000
"""By so much a moment of an engine with our clock may lie outside what was seen here; more, and its clock is not ours."""
US = 1e6
_STAGES = len(STAGES)
_LONG_S = 1e9
"""Longer than anything lasts."""

RECEIVE, ADMIT, ROUTE, PREFILL, DECODE, DELIVER = (
    STAGES.index(stage)
    for stage in (
        Stage.RECEIVE,
        Stage.ADMIT,
        Stage.ROUTE,
        Stage.PREFILL,
        Stage.DECODE,
        Stage.DELIVER,
    )
)
FIRST_ENGINE = STAGES.index(ENGINE_STAGES[0])


def usual(
    began: float, offered_at: float, admitted_at: float, stay: Stay
) -> tuple[list[int], int, bool] | None:
    """Return the stages, as yet without the delivery, where that begins, and that nothing is estimated; None where it takes an `Account`.

    For a whole answer of one engine with our clock and all moments in order: the same as an account, at a quarter of its cost.
    """
    spent = stay.spent
    if spent is None or not stay.is_same_clock or stay.told_at < stay.last_at:
        return None
    here_s = spent.received_at - began
    if not 0.0 <= here_s < _LONG_S:
        return None
    offered_us = int((offered_at - began) * US)
    admitted_us = int((admitted_at - began) * US)
    begin_us = int(here_s * US)
    us = [offered_us, admitted_us - offered_us, begin_us - admitted_us, *spent.us, 0]
    end_us = begin_us + sum(spent.us)
    if (
        len(us) != _STAGES
        or min(us) < 0
        or int((stay.submitted_at - began) * US) > begin_us
        or end_us > (stay.told_at - began) * US
    ):
        return None
    return us, end_us, False


class Account:
    """The stages of one request up to `at_us`; what comes after is its delivery."""

    __slots__ = ("_began", "at_us", "is_estimated", "us")

    def __init__(self, began: float) -> None:
        """Begin at the first byte; all moments are in seconds on the clock of `began`."""
        self._began = began
        self.at_us = 0
        self.us = [0] * len(STAGES)
        self.is_estimated = False

    def until(self, stage: int, moment: float) -> None:
        """Give the time up to a moment to a stage; nothing where the moment has passed already."""
        at_us = int((moment - self._began) * US)
        if at_us > self.at_us:
            self.us[stage] += at_us - self.at_us
            self.at_us = at_us

    def at_gateway(self, offered_at: float, admitted_at: float, ended_at: float) -> None:
        """Account for the time before engines: of a request that came no further than that, all of it."""
        if offered_at < 0:
            self.until(RECEIVE, ended_at)
        else:
            self.until(RECEIVE, offered_at)
            self.until(ADMIT, admitted_at if admitted_at >= 0 else ended_at)

    def at_engines(
        self, lost: Sequence[Stay], stay: Stay | None, *, ended_at: float, is_whole: bool
    ) -> None:
        """Account for engines: those that lost it, then the one that has it now. `is_whole`: the answer is, and its last delta is here."""
        for one in lost:
            self._stay(one)
            self.is_estimated = True
        if stay is None or not stay.is_taken or stay.left_at >= 0:
            self.until(ROUTE, ended_at)
            return
        self._stay(stay)
        if not is_whole:
            self.is_estimated = True
            self.until(DECODE if stay.first_at >= 0 else PREFILL, ended_at)

    def _stay(self, stay: Stay) -> None:
        """Account for one attempt up to the last sign of life."""
        spent = stay.spent
        if spent is not None and _is_sound(spent):
            self._told(stay, spent)
            known_at = stay.told_at
        else:
            self.is_estimated = True
            self.until(ROUTE, stay.submitted_at)
            self.until(PREFILL, stay.first_at if stay.first_at >= 0 else stay.left_at)
            known_at = stay.first_at
        if stay.last_at > known_at:
            self.is_estimated = True
            self.until(DECODE, stay.last_at)

    def _told(self, stay: Stay, spent: Spent) -> None:
        """Account for what an engine said."""
        us = spent.us
        total_us = sum(us)
        self.until(ROUTE, stay.submitted_at)
        arrived_us = int((stay.told_at - self._began) * US)
        begin_us = int((spent.received_at - self._began) * US)
        is_here = (
            stay.is_same_clock
            and self.at_us - SLACK_US <= begin_us
            and begin_us + total_us <= arrived_us + SLACK_US
        )
        if not is_here:
            begin_us = self.at_us + _way_there(arrived_us - self.at_us - total_us, stay.trip_us)
        if begin_us > self.at_us:
            self.us[ROUTE] += begin_us - self.at_us
            self.at_us = begin_us
        room_us = max(0, arrived_us - self.at_us)
        if total_us > room_us:
            self.is_estimated = self.is_estimated or total_us > room_us + SLACK_US
            us, total_us = _fitted(us, total_us, room_us), room_us
        for index, stage_us in enumerate(us, FIRST_ENGINE):
            if stage_us:
                self.us[index] += stage_us
        self.at_us += total_us


def _is_sound(spent: Spent) -> bool:
    """Return whether an engine's word can be true: durations for all of its stages, and moments that are numbers."""
    return (
        len(spent.us) == len(ENGINE_STAGES)
        and min(spent.us) >= 0
        and 0.0 <= spent.until - spent.received_at < _LONG_S  # false also for what is no number
    )


def _way_there(both_us: int, trip_us: int) -> int:
    """Return how much of the time on both ways was the way to the engine."""
    if both_us <= 0:
        return 0
    return both_us // 2 if trip_us < 0 else min(both_us, trip_us // 2)


def _fitted(us: list[int], total_us: int, room_us: int) -> list[int]:
    """Return durations cut to the room there is, in proportion; the rounding goes to the largest."""
    fitted = [one * room_us // total_us for one in us]
    fitted[us.index(max(us))] += room_us - sum(fitted)
    return fitted
