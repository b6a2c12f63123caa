"""What a mirror has under way: at most so many reads and writes, each with a deadline. Pure."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from typing_extensions import override

from services.kvstore import orders

MAX_READS = 4
"""Reads under way at most: two threads work, as many wait for them."""
MAX_WRITES = 2


class Task(msgspec.Struct, kw_only=True, eq=False):
    """Something that a mirror was asked to do."""

    order: orders.Read | orders.Write | orders.Check | orders.Compact | orders.Ping
    size: int
    done: Callable[[orders.Ended | None], None]
    """Called once, with the answer; with None where there will be none, and nothing touches a region for it any more."""
    deadline_s: float
    ends_at: float = 0.0
    """Deadline, from when it was first in line."""
    extended: int = 0


class Tasks:
    """All of one mirror."""

    def __init__(self) -> None:
        self._tasks: dict[int, Task] = {}
        self._reads: dict[int, int] = {}
        self._writes: dict[int, int] = {}
        self._number = 0

    @override
    def __repr__(self) -> str:
        return f"<Tasks reads={len(self._reads)} writes={len(self._writes)}>"

    def new_number(self) -> int:
        """Return a number for a task."""
        self._number += 1
        return self._number

    @property
    def reading_bytes(self) -> int:
        """Return what is being read, or waits for it."""
        return sum(self._reads.values())

    @property
    def can_read(self) -> bool:
        """Return whether a read would be begun soon."""
        return len(self._reads) < MAX_READS

    @property
    def can_write(self) -> bool:
        """Return whether a write would be begun soon."""
        if len(self._writes) >= MAX_WRITES:
            return False
        return not any(isinstance(self._tasks[n].order, orders.Compact) for n in self._writes)

    @property
    def is_writing(self) -> bool:
        """Return whether anything is being written."""
        return bool(self._writes)

    @property
    def is_pinged(self) -> bool:
        """Return whether a ping has no answer yet."""
        return any(isinstance(task.order, orders.Ping) for task in self._tasks.values())

    def begin(self, task: Task, now: float) -> None:
        """Add a task."""
        number = task.order.task
        self._tasks[number] = task
        lane = self._lane(task)
        if lane is not None:
            lane[number] = task.size
        task.ends_at = now + task.deadline_s

    def end(self, number: int, now: float) -> Task | None:
        """Take out and return a task. Those behind it have waited for it, not for the disk: their time begins now."""
        task = self._tasks.pop(number, None)
        lane = self._lane(task) if task is not None else None
        if lane is not None:
            del lane[number]
            for other in (self._tasks[n] for n in lane):
                other.ends_at = max(other.ends_at, now + other.deadline_s)
        return task

    def late(self, now: float) -> Task | None:
        """Return a task whose deadline has passed."""
        return next((task for task in self._tasks.values() if now > task.ends_at), None)

    def take_all(self) -> list[Task]:
        """Take out and return all tasks."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        self._reads.clear()
        self._writes.clear()
        return tasks

    def _lane(self, task: Task) -> dict[int, int] | None:
        match task.order:
            case orders.Ping():
                return None
            case orders.Write() | orders.Compact():
                return self._writes
            case orders.Read() | orders.Check():
                return self._reads
