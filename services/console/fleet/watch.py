"""Follows what hosts, gateways, operator and tracer tell while a platform starts and runs: when it is ready, why it is not, who died."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from shared.blackbox.shelf import read
from shared.bus import Bus
from shared.errors import UserError
from shared.ids import GatewayId, HostId, ServiceName
from shared.messages import (
    BlackBox,
    GatewayHeartbeat,
    HostHeartbeat,
    OperatorHeartbeat,
    ReplicaPhase,
    ReplicaState,
    ServicePhase,
    StatusRecord,
    TracerHeartbeat,
)
from shared.processes.restart import START_ATTEMPTS
from shared.processes.supervisor import Kept


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Processes that are ready when they are heard."""

    host: Kept
    operator: Kept
    tracers: list[Kept]


class FleetWatch:
    """What is known of one service's replicas, and of the processes around them."""

    def __init__(
        self,
        service: ServiceName,
        *,
        engines: int,
        gateways: int,
        parts: Parts,
        logs: Path,
        say: Callable[[str], None],
    ) -> None:
        self._service = service
        self._engines = engines
        self._gateways_wanted = gateways
        self._parts = parts
        self._logs = logs
        self._say = say
        self._gateways: set[GatewayId] = set()
        self._replicas: dict[str, ReplicaState] = {}
        self._host: HostId | None = None
        self._status = ""
        self._outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Of the start: all is there, or why it never will be."""

    async def follow(self, bus: Bus) -> None:
        """Subscribe; the watch goes on as long as the bus is open."""
        await bus.subscribe(HostHeartbeat, self._on_host)
        await bus.subscribe(GatewayHeartbeat, self._on_gateway)
        await bus.subscribe(OperatorHeartbeat, self._on_operator)
        await bus.subscribe(TracerHeartbeat, self._on_tracer)
        await bus.subscribe(BlackBox, self._on_box)

    async def ready(self) -> None:
        """Return when all is there at the same time. Raises `UserError` where the service cannot start."""
        await asyncio.shield(self._outcome)

    @property
    def ready_count(self) -> int:
        """How many replicas of the service serve."""
        return sum(state.phase is ReplicaPhase.RUNNING for state in self._own)

    @property
    def step(self) -> str:
        """What the first replica that does not serve is doing."""
        late = (state for state in self._own if state.phase is not ReplicaPhase.RUNNING)
        return next((f"{state.name}: {state.step or state.phase}" for state in late), "")

    @property
    def _own(self) -> list[ReplicaState]:
        return [state for state in self._replicas.values() if state.service == self._service]

    def what_lacks(self) -> str:
        """Say what a platform that is not ready waits for."""
        late = [state for state in self._own if state.phase is not ReplicaPhase.RUNNING]
        if late:
            first = late[0]
            names = ", ".join(state.name for state in late)
            return f"not serving: {names}; {first.name} is {first.phase}: {first.reason or first.step or '(nothing)'}"
        if self.ready_count < self._engines:
            return self._status or "the operator has started too few replicas"
        silent = [kept.launcher.name for kept in self._kept if not kept.ready]
        if silent:
            return f"not heard: {', '.join(silent)}"
        return f"{len(self._gateways)} of {self._gateways_wanted} gateways see all engines"

    @property
    def _kept(self) -> list[Kept]:
        return [self._parts.host, self._parts.operator, *self._parts.tracers]

    # --- messages

    def on_status(self, status: StatusRecord) -> None:
        """Take what the operator says of the service."""
        said = f"{status.service} is {status.phase}: {status.reason}" if status.reason else ""
        if said and said != self._status and status.phase is ServicePhase.PENDING:
            self._say(said)
        self._status = said

    def _on_gateway(self, beat: GatewayHeartbeat) -> None:
        if beat.engines >= self._engines:
            self._gateways.add(beat.gateway)
            self._look()

    def _on_operator(self, _: OperatorHeartbeat) -> None:
        self._parts.operator.ready = True
        self._look()

    def _on_tracer(self, _: TracerHeartbeat) -> None:
        for tracer in self._parts.tracers:  # there is one at most
            tracer.ready = True
        self._look()

    def _on_host(self, beat: HostHeartbeat) -> None:
        self._parts.host.ready = True
        before = self._replicas if beat.host == self._host else {}
        self._host = beat.host
        self._replicas = {state.name: state for state in beat.replicas}
        for name, state in self._replicas.items():
            self._on_replica(before.get(name), state)
        self._look()

    def _on_replica(self, before: ReplicaState | None, state: ReplicaState) -> None:
        if state.step.startswith("fetch") and (before is None or before.step != state.step):
            self._say(f"{state.name}: {state.step}")
        if before is not None and (before.phase, before.restarts) == (state.phase, state.restarts):
            return
        how, _, words = state.reason.partition("\n")
        if state.phase is ReplicaPhase.FAILED:
            text = f"{state.name} cannot run: {state.reason}"
        elif state.phase is ReplicaPhase.WAITING:
            text = f"{state.name} ended ({how}); starting it again in {state.retry_s:.1f} s"
        else:
            return
        lives = state.restarts + 1
        is_start = state.service == self._service and not self._outcome.done()
        if is_start and not self.ready_count and state.phase is ReplicaPhase.FAILED:
            self._give_up(state, text)
        elif is_start and not self.ready_count and lives >= START_ATTEMPTS:
            self._give_up(
                state, f"{state.name} ended {lives} times before it was ready ({how})\n{words}"
            )
        else:
            self._say(text)

    def _give_up(self, state: ReplicaState, text: str) -> None:
        """End the start: the service itself cannot."""
        hint = f"the whole log: {self._logs / f'{state.name}.log'}"
        self._outcome.set_exception(UserError(text.rstrip(), hint=hint))

    def _on_box(self, box: BlackBox) -> None:
        try:
            said = read(Path(box.path))
        except UserError as error:
            self._say(f"{box.engine} died: {box.cause}; {error}")
            return
        self._say(
            f"{said.name or said.engine} died: {said.cause}; {said.summary}; its black box: {box.path}"
        )

    def _look(self) -> None:
        if self._outcome.done() or len(self._gateways) < self._gateways_wanted:
            return
        if self.ready_count >= self._engines and all(kept.ready for kept in self._kept):
            self._outcome.set_result(None)
