"""Who is out there: engines and gateways by their heartbeats, who is lost, and how much may be in flight. No bus, no loop, no clock.

While this gateway cannot hear, because the bus is away or stands still, nobody is declared lost: silence says nothing then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from typing_extensions import override

from services.gateway.routing import Router, RoutingSettings, choices_limit, is_hung
from shared import fleet
from shared.fleet import HearingClock
from shared.ids import EngineId, GatewayId, ServiceName
from shared.messages import EngineHeartbeat, EngineState, GatewayHeartbeat

HUNG_MEMORY_S = 60.0
"""How long an engine that hung is left alone unless it steps; then it may show with one prompt whether it works again."""

MAX_SERVICES = 1024
"""Beyond it those without engines are forgotten, the oldest first; while all have some, further ones are not heard."""


class Loss(msgspec.Struct, frozen=True):
    """An engine whose streams must be given up; `why` is a verb phrase."""

    engine: EngineId
    service: ServiceName
    why: str


class ServiceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A service that has engines now."""

    name: ServiceName
    first_seen_unix_s: int
    max_model_len: int


class Lookout:
    """The engines and gateways that are alive, as this gateway sees them."""

    def __init__(
        self, router: Router, settings: RoutingSettings, *, own: GatewayId, over_commit: float
    ) -> None:
        self._router = router
        self._settings = settings
        self._own = own
        self._over_commit = over_commit
        self._engines = fleet.engines()
        self._gateways = fleet.gateways()
        self._clock = HearingClock()
        self._talked_s: dict[EngineId, float] = {}
        """When tokens of an engine that is alive came, on the hearing clock."""
        self._alive: dict[str, dict[EngineId, EngineHeartbeat]] = {}
        self._given_up: set[EngineId] = set()
        self._hung: dict[EngineId, tuple[int, float]] = {}
        """Step and loop time at which an engine was found hanging."""
        self._first_seen: dict[ServiceName, int] = {}
        self.gateways = 1
        """Gateways that are alive, this one included."""

    @override
    def __repr__(self) -> str:
        return f"<Lookout {self.ready()} engines ready, {self.gateways} gateways>"

    @property
    def services(self) -> dict[ServiceName, int]:
        """Services that have or had engines, and when each was first seen (Unix time)."""
        return self._first_seen

    def beats(self, service: str) -> Sequence[EngineHeartbeat]:
        """Return the last heartbeats of the engines of a service that are alive."""
        return list(self._alive.get(service, {}).values())

    def beat_of(self, service: str, engine: EngineId) -> EngineHeartbeat | None:
        """Return the last heartbeat of an engine; none where it is not alive."""
        return self._alive.get(service, {}).get(engine)

    def ready(self) -> int:
        """Return how many engines may be given work."""
        return sum(len(self._usable(service)) for service in self._alive)

    def present(self) -> list[ServiceInfo]:
        """Return the services that have engines now, in any state."""
        return [
            ServiceInfo(
                name=name,
                first_seen_unix_s=first,
                max_model_len=max(beat.max_model_len for beat in beats),
            )
            for name, first in self._first_seen.items()
            if (beats := self.beats(name))
        ]

    def limit(self, service: str) -> int:
        """Return how many choices this gateway may have in flight at a service."""
        return choices_limit(
            self._usable(service),
            self._router.book,
            over_commit=self._over_commit,
            gateways=self.gateways,
        )

    def engine_beat(self, beat: EngineHeartbeat, *, now: float, unix_s: int) -> Loss | None:
        """Take an engine's heartbeat; return the loss where it says that it failed or shows that it hangs."""
        before = self._engines
        known = before.seen.get(beat.engine)
        if known is not None and known.beat.service != beat.service:
            return (
                None  # somebody else who took its name: an engine serves one service all its life
            )
        if beat.service not in self._first_seen and not self._has_room():
            return None
        self._engines = before.hear(beat, now_s=self._clock.s)
        if self._engines is before:
            return None
        if beat.step_bound_s and not self._has_other(beat):
            # Nobody could go on with its streams: it gets all the time there is.
            beat = msgspec.structs.replace(beat, step_bound_s=0.0)
        beat = self._with_memory(beat, now)
        self._alive.setdefault(beat.service, {})[beat.engine] = beat
        self._talked_s.setdefault(beat.engine, -math.inf)
        self._first_seen.setdefault(beat.service, unix_s)
        self._router.book.account(beat.engine).observe(beat, now=now)
        why = self._trouble(beat)
        if not why:
            self._given_up.discard(beat.engine)
        elif beat.engine not in self._given_up:
            self._given_up.add(beat.engine)
            return Loss(beat.engine, beat.service, why)
        return None

    def engine_talked(self, engine: EngineId) -> None:
        """Note that an engine sent tokens: on a narrow line heartbeats wait behind them."""
        if engine in self._talked_s:
            self._talked_s[engine] = self._clock.s

    def gateway_beat(self, beat: GatewayHeartbeat) -> None:
        """Take a gateway's heartbeat."""
        self._gateways = self._gateways.hear(beat, now_s=self._clock.s)
        self._count_gateways()

    def tick(self, now: float, *, is_listening: bool) -> list[Loss]:
        """Forget who has been silent for too long, and return the engines among them; several times a second."""
        self._clock.tick(now, is_listening=is_listening)
        heard_s = self._clock.s
        self._count_gateways()
        self._gateways = self._gateways.forget(now_s=heard_s)
        self._engines = self._engines.forget(now_s=heard_s)
        lost = [
            beat
            for beats in self._alive.values()
            for engine, beat in beats.items()
            if not self._engines.is_alive(engine, now_s=heard_s)
            and heard_s - self._talked_s[engine] >= self._engines.gone_s
        ]
        for beat in lost:
            del self._alive[beat.service][beat.engine]
            self._talked_s.pop(beat.engine, None)
            self._given_up.discard(beat.engine)
            self._hung.pop(beat.engine, None)
        return [Loss(beat.engine, beat.service, "is gone") for beat in lost]

    def _with_memory(self, beat: EngineHeartbeat, now: float) -> EngineHeartbeat:
        """Return the beat with the age of the step in which the engine hung, if it has not stepped since.

        When its streams are given up it has no work left, and without work it says that it is fine.
        """
        if is_hung(beat, self._settings):
            self._hung[beat.engine] = (beat.step, now)
            return beat
        step, at = self._hung.get(beat.engine, (beat.step, now))
        if step == beat.step and now - at < HUNG_MEMORY_S and beat.engine in self._hung:
            age_s = self._settings.hung_after_s + 1.0 + now - at
            return msgspec.structs.replace(beat, step_age_s=age_s)
        self._hung.pop(beat.engine, None)
        return beat

    def _count_gateways(self) -> None:
        self.gateways = len(self._gateways.alive(now_s=self._clock.s).keys() | {self._own})

    def _usable(self, service: str) -> list[EngineHeartbeat]:
        return [
            beat
            for beat in self.beats(service)
            if beat.state is EngineState.READY and not is_hung(beat, self._settings)
        ]

    def _has_room(self) -> bool:
        """Return whether one more service may be heard of; forgets old ones for it."""
        if len(self._first_seen) >= MAX_SERVICES:
            empty = next((name for name in self._first_seen if not self._alive.get(name)), None)
            if empty is None:
                return False
            del self._first_seen[empty]
            self._alive.pop(empty, None)
        return True

    def _has_other(self, beat: EngineHeartbeat) -> bool:
        return any(other.engine != beat.engine for other in self._usable(beat.service))

    def _trouble(self, beat: EngineHeartbeat) -> str:
        if beat.state is EngineState.FAILED:
            return "failed"
        return "hangs" if is_hung(beat, self._settings) else ""
