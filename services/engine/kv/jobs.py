"""The jobs that an engine has given to the store, and the slots that nobody may use meanwhile.

A load that takes too long is given up: its request goes on without, at once. The store may still write into its slots, so these stay aside
until it says `Done`, or until it can touch nothing any more (`let_go`). A save is not waited for by anybody, and its slots do not change
while it lasts, so it is given up only when all of L2 is dropped.

An order is a job of vLLM's; where it has more keys than one message holds, it has several parts, each a job for the store.
A connection is an era: numbers of jobs are never used again, and what an era left behind ends with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec
from typing_extensions import override


class Patience(msgspec.Struct, frozen=True):
    """How long a load may take."""

    base_s: float
    bytes_per_s: float
    """Beyond it, as long as this rate needs."""

    def deadline_s(self, size: int) -> float:
        """Return how long a load of so many bytes may take."""
        return self.base_s + size / self.bytes_per_s


class Part(msgspec.Struct):
    """A job for the store."""

    number: int
    order: Order
    start: int
    """Place of its first key in the order."""
    keys: Sequence[bytes]
    slots: Sequence[int]
    era: int
    ends_at: float | None
    """When it is given up; none: never."""


class Order(msgspec.Struct):
    """A job of vLLM's under way."""

    job: int
    is_load: bool
    keys: Sequence[bytes]
    open_parts: int
    missing: set[int]
    is_told: bool = False
    """Whoever gave it knows that it has ended, and has let its slots fall free."""


class Settled(msgspec.Struct, frozen=True):
    """An order that has ended."""

    job: int
    is_load: bool
    kept: list[bytes]
    """Keys that were loaded or saved."""
    missing: list[bytes]


class Jobs:
    """All orders and parts of one engine."""

    def __init__(self, *, value_bytes: int, patience: Patience, keys_a_part: int) -> None:
        self._value_bytes = value_bytes
        self._patience = patience
        self._keys_a_part = keys_a_part
        self._number = 0
        self._parts: dict[int, Part] = {}
        self._aside: dict[int, Part] = {}
        self._settled: list[Order] = []
        self._free: list[int] = []
        self.aside: set[int] = set()
        """Slots that must not be used."""
        self.saving: set[bytes] = set()
        """Keys that are being saved."""
        self.load_slots = 0
        """Slots of loads under way."""
        self.save_slots = 0

    @override
    def __repr__(self) -> str:
        return f"<Jobs {len(self._parts)} parts, {len(self.aside)} slots aside>"

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way, nothing is aside and nothing waits to be taken."""
        return not (self._parts or self._aside or self._settled or self._free)

    def is_silent(self, era: int) -> bool:
        """Return whether the store owes an answer for a load that was given up: nobody should wait for another one."""
        return any(part.era == era for part in self._aside.values())

    # --- what happens

    def begin(
        self,
        job: int,
        keys: Sequence[bytes],
        slots: Sequence[int],
        *,
        is_load: bool,
        era: int,
        now: float,
    ) -> list[Part]:
        """Note an order; return its parts, each of which goes to the store, or is `refused`."""
        order = Order(job, is_load, keys, 0, set())
        made = []
        for start in range(0, len(keys), self._keys_a_part):
            self._number += 1
            stop = start + self._keys_a_part
            size = len(keys[start:stop]) * self._value_bytes
            ends_at = now + self._patience.deadline_s(size) if is_load else None
            part = Part(
                self._number, order, start, keys[start:stop], slots[start:stop], era, ends_at
            )
            self._parts[part.number] = part
            made.append(part)
        order.open_parts = len(made)
        if is_load:
            self.load_slots += len(slots)
        else:
            self.save_slots += len(slots)
            self.saving.update(keys)
        if not made:
            self._settled.append(order)
        return made

    def refuse(self, number: int) -> None:
        """Note that a part did not go to the store."""
        part = self._parts[number]
        self._end(part, range(len(part.keys)))

    def done(self, number: int, missing: Collection[int]) -> None:
        """Note that the store has ended a part. An unknown one changes nothing."""
        part = self._parts.get(number)
        if part is not None:
            self._end(part, [place for place in missing if 0 <= place < len(part.keys)])
        elif (given_up := self._aside.pop(number, None)) is not None:
            self._release(given_up)

    def give_up_overdue(self, now: float) -> int:
        """Give up the loads that take too long; return how many parts."""
        overdue = [
            part
            for part in self._parts.values()
            if part.ends_at is not None and part.ends_at <= now
        ]
        for part in overdue:
            self._give_up(part)
        return len(overdue)

    def lose(self, era: int) -> None:
        """Note that a connection has ended: its loads are given up. Its saves go on, for all we know."""
        for part in self._of(era):
            if part.order.is_load:
                self._give_up(part)

    def let_go(self, era: int) -> None:
        """Note that nothing of the store touches the slots of an era any more."""
        for part in self._of(era):
            self._end(part, range(len(part.keys)))
        for number in [each.number for each in self._aside.values() if each.era == era]:
            self._release(self._aside.pop(number))

    def give_up_all(self) -> None:
        """Give up everything, saves too: the slots are wanted for something else, and will not be before their parts have ended."""
        for part in list(self._parts.values()):
            self._give_up(part)

    # --- what follows

    def take_settled(self) -> list[Settled]:
        """Return the orders that have ended since the last call, each once."""
        orders, self._settled = self._settled, []
        return [_settled(order) for order in orders]

    def take_free(self) -> list[int]:
        """Return the slots that were aside when they fell free, and may be used again; each once."""
        free, self._free = self._free, []
        return free

    # --- parts

    def _of(self, era: int) -> list[Part]:
        return [part for part in self._parts.values() if part.era == era]

    def _give_up(self, part: Part) -> None:
        self._aside[part.number] = part
        self.aside.update(part.slots)
        self._end(part, range(len(part.keys)))

    def _release(self, part: Part) -> None:
        self.aside.difference_update(part.slots)
        if part.order.is_told:
            self._free += part.slots

    def _end(self, part: Part, missing: Collection[int]) -> None:
        del self._parts[part.number]
        order = part.order
        order.missing.update(part.start + place for place in missing)
        order.open_parts -= 1
        if order.is_load:
            self.load_slots -= len(part.slots)
        else:
            self.save_slots -= len(part.slots)
            self.saving.difference_update(part.keys)
        if not order.open_parts:
            self._settled.append(order)

    def __iter__(self) -> Iterator[Part]:
        """Go over the parts under way."""
        return iter(self._parts.values())


def _settled(order: Order) -> Settled:
    order.is_told = True
    kept: list[bytes] = []
    missing: list[bytes] = []
    for place, key in enumerate(order.keys):
        (missing if place in order.missing else kept).append(key)
    return Settled(order.job, order.is_load, kept, missing)
