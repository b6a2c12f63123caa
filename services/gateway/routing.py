"""Which engine gets a prompt: filters, then scorers in 0…1, then one picker. Values in, a choice with its reason out; no clock, no bus.

The total is a weighted geometric mean in all but name: the product of score ** weight. A product and not a sum, so that the scores act
as factors on the share of the load: an engine at 10% of its slow start carries about 10% of what its neighbours carry, whatever the load.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from services.gateway.loadbook import Account, LoadBook
from shared.ids import EngineId
from shared.messages import EngineHeartbeat, EngineState


class RouteReason(StrEnum):
    """Why this engine, or why none."""

    ONLY = "only"
    """The only engine that passed the filters."""
    BEST = "best"
    """The highest total."""
    TIE = "tie"
    """Drawn among those within `tie_band` of the best."""
    NO_SERVICE = "no_service"
    """No engine of this service is known."""
    NOT_READY = "not_ready"
    """Engines are known, none is ready (starting, draining, failed)."""
    HUNG = "hung"
    """Those that say they are ready have stopped stepping."""
    TRIED = "tried"
    """All that could serve it were tried for this request."""


class RoutingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How engines are compared."""

    hung_after_s: float = 30.0
    """A step older than this while there is work: the engine hangs. A chunk of prefill on a CPU takes some seconds.
    Where an engine knows its steps it hangs earlier (`step_bound_s` of its heartbeat), if there is another one to go on with."""
    slow_start_s: float = 10.0
    """A fresh engine compiles and fills caches; its share grows from `slow_start_floor` to whole over this time."""
    slow_start_floor: float = 0.1
    """Share of a fresh engine at the start."""
    load_unit_tokens: int = 256
    """Differences of load below about this many tokens hardly count: one short request."""
    tie_band: float = 0.05
    """Engines whose total is within this fraction of the best are equal; the draw among them differs from gateway to gateway, so
    they do not herd.
    """
    load_weight: float = 1.0
    warmup_weight: float = 1.0
    health_weight: float = 1.0


class RouteFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What routing knows about one prompt."""

    service: str
    work_tokens: int
    """Estimated prompt tokens + tokens allowed to be generated."""
    tried: frozenset[EngineId] = frozenset()
    """Engines that failed or refused this prompt before."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A choice, or none, and why."""

    reason: RouteReason
    engine: EngineId | None = None
    total: float = 0.0
    considered: int = 0
    """Engines that passed the filters."""


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """What the scorers share."""

    settings: RoutingSettings
    now: float
    least_tokens: int
    gateways: int
    work_tokens: int


Scorer = Callable[[Account, Scene], float]


def load_score(account: Account, scene: Scene) -> float:
    """1 for the least outstanding token work, 1/2 for twice as much. The prompt's own work counts, or an idle engine would be
    infinitely better.
    """
    base = scene.settings.load_unit_tokens + scene.work_tokens
    tokens = account.outstanding_tokens(gateways=scene.gateways)
    return (scene.least_tokens + base) / (tokens + base)


def warmup_score(account: Account, scene: Scene) -> float:
    """From the floor up to 1 over the slow start."""
    floor = scene.settings.slow_start_floor
    if account.ready_since is None or scene.settings.slow_start_s <= 0:
        return 1.0
    share = (scene.now - account.ready_since) / scene.settings.slow_start_s
    return min(1.0, floor + (1.0 - floor) * max(0.0, share))


def health_score(account: Account, scene: Scene) -> float:
    """1 with a clean record, halved by each recent failure."""
    return float(0.5 ** account.penalty.level(now=scene.now))


def is_hung(beat: EngineHeartbeat, settings: RoutingSettings) -> bool:
    """Whether the engine has work and has not begun a step for too long, although it still sends heartbeats."""
    bound_s = beat.step_bound_s or settings.hung_after_s
    return beat.step_age_s > min(bound_s, settings.hung_after_s)


def usable(
    beats: Sequence[EngineHeartbeat], facts: RouteFacts, settings: RoutingSettings
) -> Sequence[EngineHeartbeat] | RouteReason:
    """Return the engines that may serve the prompt, or why there are none."""
    known = [beat for beat in beats if beat.service == facts.service]
    if not known:
        return RouteReason.NO_SERVICE
    ready = [beat for beat in known if beat.state is EngineState.READY]
    if not ready:
        return RouteReason.NOT_READY
    alive = [beat for beat in ready if not is_hung(beat, settings)]
    if not alive:
        return RouteReason.HUNG
    fresh = [beat for beat in alive if beat.engine not in facts.tried]
    return _long_enough(fresh, facts) if fresh else RouteReason.TRIED


def _long_enough(beats: list[EngineHeartbeat], facts: RouteFacts) -> list[EngineHeartbeat]:
    """Keep the engines whose context holds the prompt; where none seems to, the longest: the gateway only estimates, the engine
    knows and says the numbers.
    """
    longest = max(beat.max_model_len for beat in beats)
    wanted = min(facts.work_tokens, longest)
    return [beat for beat in beats if beat.max_model_len >= wanted]


class Router:
    """Chooses engines; its seed makes its draws differ from those of other gateways."""

    def __init__(self, settings: RoutingSettings, *, seed: int) -> None:
        self._settings = settings
        self.book = LoadBook()
        self._random = random.Random(seed)  # noqa: S311 - spreads load, keeps no secret
        self._scorers: tuple[tuple[Scorer, float], ...] = (
            (load_score, settings.load_weight),
            (warmup_score, settings.warmup_weight),
            (health_score, settings.health_weight),
        )

    def choose(
        self, beats: Sequence[EngineHeartbeat], facts: RouteFacts, *, now: float, gateways: int = 1
    ) -> Route:
        """Return the engine for a prompt; nothing is booked."""
        candidates = usable(beats, facts, self._settings)
        if isinstance(candidates, RouteReason):
            return Route(reason=candidates)
        if len(candidates) == 1:
            return Route(
                reason=RouteReason.ONLY, engine=candidates[0].engine, total=1.0, considered=1
            )
        accounts = [(beat.engine, self.book.account(beat.engine)) for beat in candidates]
        scene = Scene(
            settings=self._settings,
            now=now,
            least_tokens=min(a.outstanding_tokens(gateways=gateways) for _, a in accounts),
            gateways=gateways,
            work_tokens=facts.work_tokens,
        )
        return self._pick([(engine, self._total(account, scene)) for engine, account in accounts])

    def _total(self, account: Account, scene: Scene) -> float:
        return float(math.prod(score(account, scene) ** weight for score, weight in self._scorers))

    def _pick(self, totals: list[tuple[EngineId, float]]) -> Route:
        bar = max(total for _, total in totals) * (1.0 - self._settings.tie_band)
        best = [pair for pair in totals if pair[1] >= bar]
        engine, total = best[0] if len(best) == 1 else self._random.choice(best)
        return Route(
            reason=RouteReason.BEST if len(best) == 1 else RouteReason.TIE,
            engine=engine,
            total=total,
            considered=len(totals),
        )


def choices_limit(
    beats: Sequence[EngineHeartbeat], book: LoadBook, *, over_commit: float, gateways: int
) -> int:
    """Return how many choices this gateway may have at the ready engines of one service.

    All slots, slightly over-committed so that none idles between two beats, minus what other gateways hold; but never less than
    an equal share,
    or a gateway that refills at once would starve the others for ever. 0 only where no engine can take anything.
    """
    slots = sum(max(1, beat.max_streams) for beat in beats) * over_commit
    others = sum(book.account(beat.engine).others_choices for beat in beats)
    if not beats:
        return 0
    return max(1, math.ceil(slots - others), math.ceil(slots / max(1, gateways)))
