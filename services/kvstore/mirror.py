"""One mirror as the store sees it: a process that serves, is watched, killed when it stalls, and started again.

Tasks that were given to it end in one of two ways: by its answer, or by `lost` once its process can touch nothing any more.
The table in `lifecycle` decides what may happen; this carries it out.
"""

from __future__ import annotations

import os

import msgspec
from typing_extensions import override

from services.kvstore import orders
from services.kvstore.adapters.children import Child, death
from services.kvstore.lifecycle import (
    LIFE,
    RUNNING,
    SERVING,
    Event,
    MirrorState,
    Record,
    Start,
    Trouble,
    next_start,
)
from services.kvstore.ports import Owner, Rules
from services.kvstore.rates import Transfer
from services.kvstore.tasks import Task, Tasks
from shared import logs
from shared.clock import Clock
from shared.kv.link import Link
from shared.kv.seqpacket import close_all

PING_S = 0.25
MAX_EXTENSIONS = 4
"""How often a deadline is put off for a process that only waits for a processor: no disk is at fault there."""


class Mirror:
    """One folder and its process."""

    def __init__(
        self,
        number: int,
        folder: str,
        *,
        owner: Owner,
        rules: Rules,
        clock: Clock,
    ) -> None:
        self.number = number
        self.folder = folder
        self.state = MirrorState.DOWN
        self.trouble = Trouble.NONE
        self.reason = ""
        self.read_only = False
        self.drops = 0
        self.opened_checked = False
        self.sizes = orders.Sizes(file_bytes={}, free_bytes=0)
        self.read = Transfer()
        self.written = Transfer()
        self.drop_s = 0.0
        """How long the last drop took, from being noticed until its tasks were free."""
        self._owner = owner
        self._budget_bytes = rules.budget_bytes
        self._deadlines = rules.deadlines
        self._rule = rules.retry
        self._clock = clock
        self._parent = rules.parent
        self._record = Record()
        self._child: Child | None = None
        self._link: Link[orders.FromMirror] | None = None
        self._tasks = Tasks()
        self._start = Start(after_s=0.0)
        self._start_at = clock()
        self._served_from: float | None = None
        self._opening_ends_at = 0.0
        self._ping_at = 0.0
        self._dropped_at = 0.0
        self._write_again_at: float | None = None
        self._stopping = False
        self._looking = False
        self._was_opening = False
        self._attached: set[int] = set()
        self._log = logs.get("kvstore").bind(mirror=number, folder=folder)

    @override
    def __repr__(self) -> str:
        return f"<Mirror {self.number} {self.state} {self._tasks} {self.trouble}>"

    # --- questions

    @property
    def bit(self) -> int:
        """Return its bit in an entry's `mirrors`."""
        return 1 << self.number

    @property
    def serves(self) -> bool:
        """Return whether it takes tasks."""
        return self.state in SERVING

    @property
    def writes(self) -> bool:
        """Return whether it takes what is saved."""
        return self.serves and not self.read_only

    @property
    def pid(self) -> int:
        """Return its process; 0: none."""
        return self._child.pid if self._child else 0

    @property
    def waiting_bytes(self) -> int:
        """Return what it has under way to read."""
        return self._tasks.reading_bytes

    @property
    def has_room_to_read(self) -> bool:
        """Return whether a read would be begun soon."""
        return self.serves and self._tasks.can_read

    @property
    def has_room_to_write(self) -> bool:
        """Return whether a write would be begun soon."""
        return self.writes and self._tasks.can_write

    @property
    def is_writing(self) -> bool:
        """Return whether it has something to write under way."""
        return self._tasks.is_writing

    # --- orders

    def begin(self, task: Task) -> None:
        """Give a task to a mirror that serves."""
        assert self._link is not None
        self._tasks.begin(task, self._clock())
        self._link.send(task.order)

    def tell(self, order: msgspec.Struct, fds: tuple[int, ...] = ()) -> None:
        """Give an order that is not answered; nothing happens where no process runs."""
        if self._link is not None and self.state in RUNNING:
            self._link.send(order, fds)
        else:
            close_all(fds)

    def attach(self, region: int, fd: int) -> int | None:
        """Have it copy from and to a region, and return the life line's read end; None where it does not serve.

        The line ends when the process has let go of the region, or is dead. The descriptor stays the caller's.
        """
        if self._link is None or self.state not in RUNNING:
            return None
        reading, writing = os.pipe()
        self._attached.add(region)
        self._link.send(orders.Attach(region=region), [os.dup(fd), writing])
        return reading

    def detach(self, region: int) -> None:
        """Have it let go of a region when nothing runs on it any more."""
        if region in self._attached:
            self._attached.discard(region)
            self.tell(orders.Detach(region=region))

    def stop(self) -> None:
        """Have the process sync and end; it is not started again."""
        self._stopping = True
        self.tell(orders.Stop())

    def kill(self) -> None:
        """End the process at once."""
        if self._child is not None:
            self._child.kill()

    def complete(self) -> None:
        """Note that it has all that the other one has."""
        if self.state is MirrorState.REBUILDING:
            self._move(Event.COMPLETE)

    def behind(self) -> None:
        """Note that it lacks something."""
        if self.state is MirrorState.HEALTHY:
            self._move(Event.BEHIND)

    def drop(self, trouble: Trouble, reason: str) -> None:
        """Take it out of service at once: kill the process, and see to its end."""
        if self.state not in RUNNING or self._child is None:
            return
        self.trouble, self.reason = trouble, reason
        self._dropped_at = self._clock()
        self._child.kill()
        self._was_opening = self.state is MirrorState.OPENING
        self._move(Event.KILLED)
        self.look()

    # --- time

    def tick(self) -> None:
        """Look at deadlines, at the process, and at what is due. Called some times a second, and when `poll_soon` says so."""
        now = self._clock()
        if self.state in RUNNING:
            self._look_at_deadlines(now)
        self.look()
        if self.state is MirrorState.DOWN and now >= self._start_at and not self._stopping:
            self._begin_process()
        if self.serves and now >= self._ping_at:
            self._ping_at = now + PING_S
            self._ping()
        if self._write_again_at is not None and now >= self._write_again_at and self.serves:
            self._write_again_at = None
            self.drop(Trouble.NONE, "writing is tried again")

    @property
    def needs_looks(self) -> bool:
        """Return whether its end is awaited: then `look` is to be called often."""
        return self.state in (MirrorState.ENDING, MirrorState.STUCK)

    def look(self) -> None:
        """See what has become of the process."""
        child = self._child
        if child is None or self._looking:
            return
        self._looking = True
        try:
            code = child.ended()
            if code is not None:
                if self._link is not None:
                    self._link.drain()  # its last word says more than its exit code
                self._on_gone(code)
            elif self.state is MirrorState.ENDING and child.is_quiet():
                self._move(Event.QUIET)
                self._lose_tasks()
        finally:
            self._looking = False

    def _look_at_deadlines(self, now: float) -> None:
        if self.state is MirrorState.OPENING:
            if now > self._opening_ends_at:
                self.drop(Trouble.STALLED, f"not open after {self._deadlines.open_s} s")
            return
        if self._tasks.late(now) is not None and self._link is not None:
            self._link.drain()  # the answer may be there: we were late ourselves
        late = self._tasks.late(now)
        if late is None or self._child is None:
            return
        if late.extended < MAX_EXTENSIONS and self._child.is_starved():
            late.extended += 1
            late.ends_at = now + late.deadline_s
            return
        name = type(late.order).__name__.lower()
        self.drop(Trouble.STALLED, f"no answer to a {name} in {late.deadline_s} s")

    def _ping(self) -> None:
        if self._tasks.is_pinged:
            return
        order = orders.Ping(task=self.new_task())
        deadline_s = self._deadlines.read_s
        self.begin(Task(order=order, size=0, done=lambda _: None, deadline_s=deadline_s))

    def new_task(self) -> int:
        """Return a number for a task."""
        return self._tasks.new_number()

    # --- the process

    def _begin_process(self) -> None:
        start = self._start
        choices = orders.Choices(
            folder=self.folder,
            parent=self._parent,
            budget_bytes=self._budget_bytes,
            empty=start.empty,
            read_only=start.read_only,
            check=self.trouble is Trouble.CRASHED,
        )
        try:
            child = Child.start(choices)
        except OSError as error:
            self._log.error("mirror_not_started", reason=str(error))
            self._start_at = self._clock() + self._rule.max_s
            return
        self._child = child
        self._attached = set()
        self.read_only = start.read_only
        self._was_opening = True
        self._served_from = None
        self._opening_ends_at = self._clock() + self._deadlines.open_s
        self._link = Link(
            child.sock, orders.FromMirror, on_message=self._on_message, on_end=self._on_end
        )
        self._move(Event.START)
        if start.empty:
            self._log.warning("mirror_emptied", reason=self.reason)

    def _on_end(self, reason: str) -> None:
        """Its connection has ended: it is dead, or about to be."""
        self._link = None
        if self._child is not None:
            self._child.kill()
        self.look()
        if self.state in RUNNING:  # not reaped yet; nothing of it is trusted any more
            if not self._stopping and self.trouble is Trouble.NONE:
                self.trouble, self.reason = Trouble.CRASHED, reason  # its exit will tell more
            self._dropped_at = self._clock()
            self._was_opening = self.state is MirrorState.OPENING
            self._move(Event.KILLED)

    def _on_gone(self, code: int) -> None:
        was = self.state
        self._child = None
        if was in RUNNING:
            self._dropped_at = self._clock()
            self._was_opening = was is MirrorState.OPENING
            if self.trouble is Trouble.NONE and not self._stopping:
                self.trouble = Trouble.CRASHED
        if self.trouble is Trouble.CRASHED:
            self.trouble, self.reason = death(code)
        link, self._link = self._link, None
        if link is not None:
            link.end("its process is gone")
        self._plan_start()
        self._move(Event.GONE)
        self._lose_tasks()

    def _plan_start(self) -> None:
        now = self._clock()
        served_s = now - self._served_from if self._served_from is not None else 0.0
        if self.trouble is Trouble.NONE:
            self._start = Start(after_s=0.0)
        else:
            self._start = next_start(
                self._rule,
                self._record,
                self.trouble,
                was_opening=self._was_opening,
                served_s=served_s,
            )
        self._write_again_at = now + self._rule.write_again_s if self._start.read_only else None
        self._start_at = now + self._start.after_s

    def _lose_tasks(self) -> None:
        """Let go of what it had under way: nothing touches a region for it any more."""
        self.drop_s = self._clock() - self._dropped_at
        for task in self._tasks.take_all():
            task.done(None)

    # --- messages

    def _on_message(self, message: orders.FromMirror, fds: list[int]) -> None:
        close_all(fds)
        if self.state not in RUNNING:
            return
        match message:
            case orders.Listed():
                self._owner.on_listed(self, message)
            case orders.Opened(checked=checked):
                self._on_opened(checked=checked)
            case orders.Ended():
                self._on_ended(message)
            case orders.Sizes():
                self.sizes = message
            case orders.Failed(trouble=trouble, reason=reason):
                self.drop(trouble, reason)

    def _on_opened(self, *, checked: bool) -> None:
        self.opened_checked = checked
        self._served_from = self._clock()
        self._was_opening = False
        if not self.read_only:
            self.trouble, self.reason = Trouble.NONE, ""
        self._owner.attach_all(self)
        self._move(Event.OPENED)

    def _on_ended(self, ended: orders.Ended) -> None:
        task = self._tasks.end(ended.task, self._clock())
        if task is None:
            return
        if not (ended.missing or ended.bad or ended.refused):
            if isinstance(task.order, orders.Read):
                self.read.measure(task.size, ended.seconds)
            elif isinstance(task.order, orders.Write):
                self.written.measure(task.size, ended.seconds)
        task.done(ended)

    def _move(self, event: Event) -> None:
        before = self.state
        self.state = LIFE.next(before, event)
        told = {"before": before.value, "state": self.state.value}
        if before in SERVING and self.state not in SERVING and not self._stopping:
            self.drops += 1
            self._log.warning(
                "mirror_dropped", trouble=self.trouble.value, reason=self.reason, **told
            )
        else:
            self._log.info("mirror_state", trouble=self.trouble.value, reason=self.reason, **told)
        self._owner.on_state(self)
