"""The replicas of a host as a table: what may happen to one, whom the host obeys, and what it says of them all. Pure.

Decides only; `keeper` carries out. Time comes as values: wall microseconds for people, monotonic seconds for waits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Literal

import msgspec
from typing_extensions import override

from services.host.ports import Order
from services.host.room import Claim, Lack, Room
from shared.ids import EngineId
from shared.messages import (
    EngineHeartbeat,
    EngineState,
    HostAnswer,
    ReplicaPhase,
    ReplicaState,
    StartReplica,
    StopReplica,
)
from shared.transitions import Transitions

BASE_DELAY_S = 0.5
MAX_DELAY_S = 60.0
HEALTHY_S = 60.0
"""A replica that served for so long starts with a clean record."""
MAX_REASON_CHARS = 1500
MAX_LINE_CHARS = 300

_NAME = re.compile(r"[A-Za-z0-9_-]{1,256}")
"""Files are called by it."""
_Why = Literal["epoch", "name", "room", "draining"]


class Event(StrEnum):
    """What can happen to a replica."""

    PREPARED = "prepared"
    """All that its process needs is there."""
    SERVES = "serves"
    """Its engine says that it is ready."""
    ENDED = "ended"
    """Its process ended by itself, or could not begin; another try may do better."""
    AGAIN = "again"
    """Its pause is over, or what was wrong is mended."""
    CANNOT = "cannot"
    """It will not get better by itself."""
    STOP = "stop"
    """Somebody who may say so wants it to end."""


LIFE: Transitions[ReplicaPhase, Event] = Transitions(
    "replica",
    {
        ReplicaPhase.PREPARING: {
            Event.PREPARED: ReplicaPhase.STARTING,
            Event.ENDED: ReplicaPhase.WAITING,
            Event.CANNOT: ReplicaPhase.FAILED,
            Event.STOP: ReplicaPhase.STOPPING,
        },
        ReplicaPhase.STARTING: {
            Event.SERVES: ReplicaPhase.RUNNING,
            Event.ENDED: ReplicaPhase.WAITING,
            Event.CANNOT: ReplicaPhase.FAILED,
            Event.STOP: ReplicaPhase.STOPPING,
        },
        ReplicaPhase.RUNNING: {
            Event.SERVES: ReplicaPhase.RUNNING,
            Event.ENDED: ReplicaPhase.WAITING,
            Event.STOP: ReplicaPhase.STOPPING,
        },
        ReplicaPhase.WAITING: {
            Event.AGAIN: ReplicaPhase.PREPARING,
            Event.STOP: ReplicaPhase.STOPPING,
        },
        ReplicaPhase.FAILED: {
            # Somebody has mended what was wrong.
            Event.AGAIN: ReplicaPhase.PREPARING,
            Event.STOP: ReplicaPhase.STOPPING,
        },
        ReplicaPhase.STOPPING: {},
    },
)


def pause_s(failures: int, *, draw: float) -> float:
    """Return how long a replica waits after so many ends in a row; `draw` from 0 to 1 spreads those that died together."""
    doubled = BASE_DELAY_S * 2.0 ** min(failures - 1, 10)
    return min(MAX_DELAY_S, doubled) * (0.75 + 0.25 * draw)


def shortened(reason: str) -> str:
    """Return a reason that fits into heartbeats: long lines without their ends, many lines without those in the middle."""
    lines = [
        line if len(line) <= MAX_LINE_CHARS else f"{line[: MAX_LINE_CHARS - 1]}…"
        for line in reason.splitlines()
    ]
    first, *rest = lines or [""]
    room = MAX_REASON_CHARS - len(first)
    kept: list[str] = []
    for line in reversed(rest):
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return "\n".join([first, *reversed(kept)])


class Replica:
    """What the table knows of one."""

    def __init__(self, state: ReplicaState) -> None:
        self.state = state
        self.failures = 0
        """Ends in a row without a healthy life between them."""
        self.engine: EngineId | None = None
        """Of the present life, once it was heard."""
        self.served_at: float | None = None
        """Since when the present life serves; monotonic."""
        self.said = ""
        """Why its engine failed, in the engine's own words."""
        self._past: EngineId | None = None

    @override
    def __repr__(self) -> str:
        return f"<Replica {self.state.name} {self.state.phase} restarts={self.state.restarts}>"

    def is_heard(self, beat: EngineHeartbeat) -> bool:
        """Whether a heartbeat is of its present life; a late one of the last life is not."""
        return beat.service == self.state.service and beat.engine != self._past

    def begin(self) -> None:
        """Forget the last life."""
        self._past, self.engine = self.engine or self._past, None
        self.served_at, self.said = None, ""


class Replicas:
    """All replicas of one host."""

    def __init__(self, room: Room, *, epoch: int = 0) -> None:
        self.room = room
        self.epoch = epoch
        """The highest that was obeyed."""
        self.is_draining = False
        self._all: dict[str, Replica] = {}

    @override
    def __repr__(self) -> str:
        return f"<Replicas {len(self._all)} epoch={self.epoch}>"

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._all.values())

    def get(self, name: str) -> Replica | None:
        """Return a replica, or none of this name."""
        return self._all.get(name)

    @property
    def states(self) -> list[ReplicaState]:
        """All of them, by name."""
        return [self._all[name].state for name in sorted(self._all)]

    def start(self, order: StartReplica, claim: Claim, *, now_us: int) -> tuple[HostAnswer, bool]:
        """Take an order; return the answer, and whether a new life begins."""
        if old := self._refusal_of(order.epoch):
            return old, False
        if self.is_draining:
            return self._refuse("draining", "this host ends"), False
        if not _NAME.fullmatch(order.name):
            return self._refuse("name", "a name has letters, digits, - and _"), False
        there = self._all.get(order.name)
        if there is not None:
            return self._start_again(there.state, order)
        grant = self.room.give(order.name, claim)
        if isinstance(grant, Lack):
            return self._refuse("room", grant.reason), False
        self._all[order.name] = Replica(
            ReplicaState(
                name=order.name,
                service=order.service,
                revision=order.revision,
                phase=ReplicaPhase.PREPARING,
                since_us=now_us,
                metrics_port=grant.metrics_port,
            )
        )
        return HostAnswer(accepted=True, epoch=self.epoch), True

    def adopt(self, order: Order, claim: Claim, *, now_us: int) -> None:
        """Take over a replica that an earlier life started. It has its memory already, so that a lack of room is no reason against it."""
        if isinstance(self.room.give(order.name, claim), Lack):
            self.room.give(order.name, Claim())
        self._all[order.name] = Replica(
            ReplicaState(
                name=order.name,
                service=order.service,
                revision=order.revision,
                phase=ReplicaPhase.STARTING,
                since_us=now_us,
            )
        )

    def _start_again(self, state: ReplicaState, order: StartReplica) -> tuple[HostAnswer, bool]:
        if (state.service, state.revision) != (order.service, order.revision):
            return self._refuse("name", f"revision {state.revision} has this name here"), False
        if state.phase is ReplicaPhase.STOPPING:
            return self._refuse("name", "one of this name stops here"), False
        return HostAnswer(accepted=True, epoch=self.epoch), False

    def mended(self, name: str, claim: Claim, *, now_us: int) -> bool:
        """Begin again with what had failed, unless there is no room for it now."""
        grant = self.room.give(name, claim)
        if isinstance(grant, Lack):
            return False
        self.on(name, Event.AGAIN, now_us=now_us)
        self.note(name, metrics_port=grant.metrics_port)
        return True

    def stop(self, order: StopReplica, *, now_us: int) -> tuple[HostAnswer, bool]:
        """Take an order; return the answer, and whether a replica begins to stop."""
        if old := self._refusal_of(order.epoch):
            return old, False
        return HostAnswer(accepted=True, epoch=self.epoch), self.end(order.name, now_us=now_us)

    def end(self, name: str, *, now_us: int) -> bool:
        """Begin to stop a replica; false where it is not there, or stops already."""
        there = self._all.get(name)
        if there is None or there.state.phase is ReplicaPhase.STOPPING:
            return False
        self.on(name, Event.STOP, now_us=now_us)
        return True

    def forget(self, name: str) -> None:
        """Have its room again: nothing is left of it."""
        del self._all[name]
        self.room.take_back(name)

    def on(self, name: str, event: Event, *, now_us: int, reason: str = "") -> ReplicaState:
        """Let something happen to a replica. Raises `IllegalTransition`."""
        replica = self._all[name]
        state = replica.state
        phase = LIFE.next(state.phase, event)
        if phase is ReplicaPhase.FAILED:
            self.room.take_back(name)
        if event is Event.AGAIN:
            replica.begin()
            lives = state.restarts + (state.phase is ReplicaPhase.WAITING)
            state = msgspec.structs.replace(state, restarts=lives)
        replica.state = msgspec.structs.replace(
            state,
            phase=phase,
            step="",
            retry_s=0.0,
            pid=state.pid if phase in _WITH_PROCESS else 0,
            since_us=state.since_us if phase is state.phase else now_us,
            reason=shortened(reason),
        )
        return replica.state

    def ended(
        self, name: str, reason: str, *, now: float, now_us: int, draw: float
    ) -> ReplicaState:
        """Let a life end by itself; `retry_s` says after which pause the next begins."""
        replica = self._all[name]
        healthy = replica.served_at is not None and now - replica.served_at >= HEALTHY_S
        replica.failures = 1 if healthy else replica.failures + 1
        self.on(name, Event.ENDED, now_us=now_us, reason=reason)
        return self.note(name, retry_s=round(pause_s(replica.failures, draw=draw), 3))

    def note(self, name: str, **changes: object) -> ReplicaState:
        """Change what is told of a replica within its phase."""
        replica = self._all[name]
        replica.state = msgspec.structs.replace(replica.state, **changes)
        return replica.state

    def heard(self, beat: EngineHeartbeat, *, now: float, now_us: int) -> bool:
        """Take an engine's heartbeat; return whether it changed anything."""
        replica = self._all.get(beat.name)
        if replica is None or not replica.is_heard(beat):
            return False
        before = replica.state
        if before.phase not in _WITH_PROCESS:
            return False
        replica.engine = beat.engine
        replica.said = beat.reason if beat.state is EngineState.FAILED else ""
        if before.phase is ReplicaPhase.STARTING:
            if beat.state is EngineState.READY:
                replica.served_at = now
                self.on(beat.name, Event.SERVES, now_us=now_us)
            elif beat.state is EngineState.STARTING:
                self.note(beat.name, step="load")
        return replica.state != before

    def _refusal_of(self, epoch: int) -> HostAnswer | None:
        """Refuse whoever is no longer the operator; else obey nobody older from now on."""
        if epoch < self.epoch:
            return self._refuse("epoch", f"epoch {epoch} is over, {self.epoch} leads")
        self.epoch = epoch
        return None

    def _refuse(self, why: _Why, reason: str) -> HostAnswer:
        return HostAnswer(accepted=False, refused=why, reason=reason, epoch=self.epoch)


_WITH_PROCESS = {ReplicaPhase.STARTING, ReplicaPhase.RUNNING, ReplicaPhase.STOPPING}
