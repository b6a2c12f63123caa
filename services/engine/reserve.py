"""Who may start now: blocks of a KV pool are promised to requests before they start, all that they may come to need. Pure.

Each request has a lane by class and length, in which the order is that of arrival. The first of a lane starts when

- what it may need is free and promised to nobody, so that nobody who runs is preempted for lack of blocks;
- its kind stays within its ceiling: long ones leave what is kept for short ones, the worse classes what is kept for the better;
- it leaves alone what is being gathered for others: while a better class waits for blocks, those worse that start meanwhile take no more
  than fits beside it; and while somebody has waited too long (`Plan.waits_s`), nobody takes more. What ran before ends some time, so the
  one waiting starts after at most one such life. Lanes in which somebody has waited too long take turns, whatever their class.

So a long request that waits holds up neither those behind it nor, for long, itself. Nothing here depends on what is computed: who starts
when changes no token.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from typing_extensions import override

from services.engine.reserve_plan import RANKS, Plan

Shared = Callable[[str], int]
"""Returns how many of the blocks that a request needs others have in use already, so that it takes none for them."""


class Entry:
    """A request, from its arrival to its end."""

    __slots__ = ("charged", "due", "key", "lane", "mark_s", "need", "number", "order")

    def __init__(self, key: str, need: int, lane: Lane, due: float, number: int) -> None:
        self.key = key
        self.need = need
        """Blocks at worst."""
        self.charged = 0
        """The same without those that others had when it started."""
        self.lane = lane
        self.due = due
        """When it will have waited too long."""
        self.number = number
        """Arrivals count up."""
        self.order = 0
        """Starts count up; 0: not promised anything."""
        self.mark_s = lane.blocked_s
        """How long its lane had stood for lack of blocks when it came."""

    @override
    def __repr__(self) -> str:
        return f"<Entry {self.key} needs {self.need}, {'runs' if self.order else 'waits'}>"


class Claim:
    """Blocks that are being gathered for somebody who waits."""

    __slots__ = ("entry", "order", "taken")

    def __init__(self, entry: Entry, order: int) -> None:
        self.entry = entry
        self.order = order
        """Those that started later are held to it."""
        self.taken = 0
        """Blocks that these have now."""


class Lane:
    """The waiting requests of one class and length."""

    __slots__ = (
        "blocked_at",
        "blocked_s",
        "claim",
        "entries",
        "is_long",
        "promised",
        "rank",
        "turn",
    )

    def __init__(self, rank: int, *, is_long: bool) -> None:
        self.rank = rank
        self.is_long = is_long
        self.entries: list[tuple[int, Entry]] = []
        self.promised = 0
        """Blocks that those of this lane have who run."""
        self.claim: Claim | None = None
        """Held against the worse classes by its first."""
        self.turn = 0
        """When an overdue one of this lane had its turn: starts count up."""
        self.blocked_at: float | None = None
        self.blocked_s = 0.0
        """How long its first stood for lack of blocks, up to `blocked_at`."""

    @override
    def __repr__(self) -> str:
        return f"<Lane {self.rank}{' long' if self.is_long else ''}: {len(self.entries)}>"

    def stand(self, now: float) -> None:
        """Count the time since the last look as lack of blocks, where it was."""
        if self.blocked_at is not None:
            self.blocked_s += max(0.0, now - self.blocked_at)
            self.blocked_at = None


class Reserve:
    """All requests of one pool."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.promised = 0
        """Blocks promised to those that run, those they have already included."""
        self._entries: dict[str, Entry] = {}
        self._lanes = [
            Lane(rank, is_long=is_long) for rank in range(RANKS) for is_long in (False, True)
        ]
        self._running = 0
        self._arrivals = 0
        self._starts = 0
        self._overdue: Claim | None = None

    @override
    def __repr__(self) -> str:
        return f"<Reserve {self.promised} of {self.plan.total} promised, {self.waiting} wait>"

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    @property
    def waiting(self) -> int:
        """Requests in lanes."""
        return sum(len(lane.entries) for lane in self._lanes)

    @property
    def blocked(self) -> int:
        """Requests that wait for blocks."""
        return sum(len(lane.entries) for lane in self._lanes if lane.blocked_at is not None)

    @property
    def order(self) -> Iterator[str]:
        """The waiting requests, better classes first."""
        return (entry.key for lane in self._lanes for _, entry in lane.entries)

    @property
    def has_short(self) -> bool:
        """Whether a short request waits."""
        return any(lane.entries and not lane.is_long for lane in self._lanes)

    def need_of(self, key: str) -> int:
        """Return what is promised to a request, or will be; an unknown one has nothing."""
        entry = self._entries.get(key)
        return 0 if entry is None else entry.need

    def kept(self, free: int) -> int:
        """Return how many of the free blocks that are promised to nobody a long request of the default class may not have."""
        plan = self.plan
        room = min(
            plan.total - plan.short_blocks - self._promised_long(),
            plan.total - plan.interactive_blocks - self._promised_from(1),
        )
        return max(0, free - max(0, room))

    # --- requests

    def join(self, key: str, *, need: int, tokens: int, rank: int, now: float) -> None:
        """Let a request wait. `need`: blocks at worst; `tokens`: what it may come to."""
        rank = min(max(rank, 0), RANKS - 1)
        lane = self._lanes[2 * rank + (tokens > self.plan.short_tokens)]
        if lane.blocked_at is not None:
            self._stand_on(lane, now)
        self._arrivals += 1
        due = now + self.plan.waits_s[rank]
        entry = Entry(key, min(need, self.plan.total), lane, due, self._arrivals)
        self._entries[key] = entry
        lane.entries.append((entry.number, entry))

    def start(self, key: str, now: float, *, shared: int = 0) -> float:
        """Promise a waiting request its blocks; return how long it waited for lack of blocks. `shared`: those that others have in use."""
        entry = self._entries[key]
        lane = entry.lane
        self._starts += 1
        if self._overdue is not None and self._overdue.entry is entry:
            lane.turn = self._starts
        self._leave(entry)
        if lane.blocked_at is not None:
            self._stand_on(lane, now)
        entry.order = self._starts
        self._running += 1
        self._take(entry, entry.need - shared)
        return lane.blocked_s - entry.mark_s

    def set_aside(self, key: str) -> None:
        """Let others go before a request that cannot start for reasons of its own, until `back`."""
        self._leave(self._entries[key])

    def back(self, key: str, *, need: int | None = None) -> None:
        """Let a request wait again, where it was: it could not start, or has lost its blocks."""
        entry = self._entries[key]
        self._withdraw(entry)
        if need is not None:
            entry.need = min(need, self.plan.total)
        if not self._is_waiting(entry):
            insort(entry.lane.entries, (entry.number, entry), key=lambda each: each[0])

    def grow(self, key: str, need: int) -> None:
        """Promise a running request more, since it has more already."""
        entry = self._entries[key]
        more = need - entry.need
        if entry.order and more > 0:
            self._take(entry, more)
            entry.need = need

    def drop(self, key: str) -> None:
        """Forget a request: it has ended, or nobody wants it. An unknown one changes nothing."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._withdraw(entry)
            self._leave(entry)

    # --- the choice

    def next(self, now: float, free: int, shared: Shared = lambda _key: 0) -> str | None:
        """Return who may start now; none: nobody. `free`: blocks that are free and promised to nobody.

        Whoever cannot for lack of blocks begins to gather them.
        """
        overdue = self._gathering(now)
        if overdue is not None and self._can(overdue, free, shared):
            overdue.lane.stand(now)
            return overdue.key
        first: Entry | None = None
        for lane in self._lanes:
            if not lane.entries:
                lane.blocked_at = None
                continue
            head = lane.entries[0][1]
            first = first or overdue or head
            if head is not overdue and self._can(head, free, shared):
                lane.stand(now)
                return head.key
            self._stand_on(lane, now)
            if lane.claim is None or lane.claim.entry is not head:
                lane.claim = Claim(head, self._starts)
        # With nobody to wait for, whoever is first must try.
        return first.key if first is not None and not self._running else None

    def _gathering(self, now: float) -> Entry | None:
        """Return whose turn it is of those that have waited too long: the same until it has started or is not first any more."""
        claim = self._overdue
        if claim is not None and claim.entry.lane.entries[0][1] is claim.entry:
            return claim.entry
        heads = [lane.entries[0][1] for lane in self._lanes if lane.entries]
        overdue = min(
            (head for head in heads if head.due <= now),
            key=lambda head: (head.lane.turn, head.due),
            default=None,
        )
        self._overdue = None if overdue is None else Claim(overdue, self._starts)
        return overdue

    def _can(self, entry: Entry, free: int, shared: Shared) -> bool:
        need = entry.need
        if need <= free and self._may(entry, need):
            return True
        in_use = shared(entry.key)
        return in_use > 0 and need - in_use <= free and self._may(entry, need - in_use)

    def _may(self, entry: Entry, need: int) -> bool:
        """Return whether a request keeps to the ceilings and leaves alone what is gathered for others. Whose turn it is may."""
        plan, lane = self.plan, entry.lane
        if self._overdue is not None and self._overdue.entry is entry:
            return True
        if lane.is_long and self._promised_long() + need > plan.total - plan.short_blocks:
            return False
        kept = plan.interactive_blocks
        if lane.rank and self._promised_from(1) + need > plan.total - kept:
            return False
        kept += plan.default_blocks
        if lane.rank > 1 and self._promised_from(2) + need > plan.total - kept:
            return False
        overdue = self._overdue
        if overdue is not None and overdue.taken + need > plan.total - overdue.entry.need:
            return False
        return all(
            other.claim.taken + need <= plan.total - other.claim.entry.need
            for other in self._lanes[: 2 * lane.rank]
            if other.claim is not None
            and other.entries
            and other.entries[0][1] is other.claim.entry
        )

    # --- sums

    def _promised_long(self) -> int:
        return sum(lane.promised for lane in self._lanes if lane.is_long)

    def _promised_from(self, rank: int) -> int:
        return sum(lane.promised for lane in self._lanes[2 * rank :])

    def _take(self, entry: Entry, blocks: int) -> None:
        """Count blocks of a running request, or uncount them."""
        entry.charged += blocks
        self.promised += blocks
        entry.lane.promised += blocks
        for claim in self._claims_on(entry):
            if entry.order > claim.order:
                claim.taken += blocks

    def _claims_on(self, entry: Entry) -> list[Claim]:
        claims = [lane.claim for lane in self._lanes[: 2 * entry.lane.rank]]
        return [claim for claim in (*claims, self._overdue) if claim is not None]

    def _withdraw(self, entry: Entry) -> None:
        if entry.order:
            self._take(entry, -entry.charged)
            entry.order = 0
            self._running -= 1

    def _leave(self, entry: Entry) -> None:
        lane = entry.lane
        if self._is_waiting(entry):
            del lane.entries[self._place(entry)]
        if lane.claim is not None and lane.claim.entry is entry:
            lane.claim = None
        if self._overdue is not None and self._overdue.entry is entry:
            self._overdue = None

    def _is_waiting(self, entry: Entry) -> bool:
        place = self._place(entry)
        entries = entry.lane.entries
        return place < len(entries) and entries[place][1] is entry

    def _place(self, entry: Entry) -> int:
        return bisect_left(entry.lane.entries, entry.number, key=lambda each: each[0])

    @staticmethod
    def _stand_on(lane: Lane, now: float) -> None:
        """Count the time up to now as lack of blocks where it was, and what comes as well."""
        lane.stand(now)
        lane.blocked_at = now
