"""Which engine gets a prompt: filters, then scorers in 0…1, then one picker. Values in, a choice with its reason out; no clock, no bus.

The total is a weighted geometric mean in all but name: the product of score ** weight. A product and not a sum, so that the scores act
as factors on the share of the load: an engine at 10% of its slow start carries about 10% of what its neighbours carry, whatever the load.

Load, warmth and distance are one score, since they are one currency: tokens of work until the answer is there (`costs`). So a warm engine
wins while its queue is shorter than what would be computed again elsewhere, and not longer.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from services.gateway.costs import Candidate, CostSettings, Prompt, candidate
from services.gateway.loadbook import LoadBook
from services.gateway.warmth import WarmthView
from shared.ids import EngineId
from shared.messages import Chain, EngineHeartbeat, EngineState


class RouteReason(StrEnum):
    """Why this engine, or why none."""

    ONLY = "only"
    """The only engine that passed the filters."""
    BEST = "best"
    """The highest total."""
    TIE = "tie"
    """Drawn among those within `tie_band` of the best."""
    WARM = "warm"
    """It has the beginning of the prompt; without that others would have been chosen, or would have been as good."""
    NO_SERVICE = "no_service"
    """No engine of this service is known."""
    NOT_READY = "not_ready"
    """Engines are known, none is ready (starting, draining, failed)."""
    HUNG = "hung"
    """Those that say they are ready have stopped stepping."""
    TRIED = "tried"
    """All that could serve it were tried for this request."""


class RoutingSettings(CostSettings, frozen=True, kw_only=True):
    """How engines are compared."""

    hung_after_s: float = 30.0
    """A step older than this while there is work: the engine hangs. A chunk of prefill on a CPU takes some seconds.
    Where an engine knows its steps it hangs earlier (`step_bound_s` of its heartbeat), if there is another one to go on with."""
    slow_start_s: float = 10.0
    """A fresh engine compiles and fills caches; its share grows from `slow_start_floor` to whole over this time."""
    slow_start_floor: float = 0.1
    """Share of a fresh engine at the start."""
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
    chain: Chain | None = None
    """What the prompt begins with; none: warmth does not count."""
    pieces: tuple[int, ...] = ()
    """The hashes of the chain."""
    prompt_bytes: int = 0
    """What travels to the engine."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A choice, or none, and why."""

    reason: RouteReason
    engine: EngineId | None = None
    total: float = 0.0
    considered: int = 0
    """Engines that passed the filters."""
    cached_tokens: int = 0
    """Tokens of the prompt that the engine is expected to have."""
    saved_tokens: int = 0
    """Work that this is expected to save."""


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """What the scorers share."""

    settings: RoutingSettings
    now: float
    least_tokens: float
    """Of all candidates."""


Scorer = Callable[[Candidate, Scene], float]


def cost_score(one: Candidate, scene: Scene) -> float:
    """1 for the least work until the answer is there, 1/2 for twice as much."""
    return scene.least_tokens / one.tokens


def warmup_score(one: Candidate, scene: Scene) -> float:
    """From the floor up to 1 over the slow start."""
    account = one.account
    floor = scene.settings.slow_start_floor
    if account.ready_since is None or scene.settings.slow_start_s <= 0:
        return 1.0
    share = (scene.now - account.ready_since) / scene.settings.slow_start_s
    return min(1.0, floor + (1.0 - floor) * max(0.0, share))


def health_score(one: Candidate, scene: Scene) -> float:
    """1 with a clean record, halved by each recent failure."""
    level = one.account.penalty.level(now=scene.now)
    return 0.5**level if level else 1.0


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

    def __init__(self, settings: RoutingSettings, *, seed: int, zone: str = "") -> None:
        """`zone`: where this gateway is; empty: not known, all engines count as near."""
        self._settings = settings
        self._zone = zone
        self.book = LoadBook()
        self.warmth = WarmthView()
        self._random = random.Random(seed)  # noqa: S311 - spreads load, keeps no secret
        self._scorers: tuple[tuple[Scorer, float], ...] = (
            (cost_score, settings.load_weight),
            (warmup_score, settings.warmup_weight),
            (health_score, settings.health_weight),
        )

    @property
    def uses_warmth(self) -> bool:
        """Whether it matters what prompts begin with."""
        shares = self._settings
        return max(shares.warm_share_l1, shares.warm_share_l2, shares.warm_share_l3) > 0

    def choose(
        self, beats: Sequence[EngineHeartbeat], facts: RouteFacts, *, now: float, gateways: int = 1
    ) -> Route:
        """Return the engine for a prompt; nothing is booked."""
        candidates = usable(beats, facts, self._settings)
        if isinstance(candidates, RouteReason):
            return Route(reason=candidates)
        prompt = Prompt(
            work_tokens=facts.work_tokens, prompt_bytes=facts.prompt_bytes, gateways=gateways
        )
        ones = [self._candidate(beat, facts, prompt) for beat in candidates]
        if len(ones) == 1:
            return self._route(RouteReason.ONLY, ones[0], 1.0, considered=1)
        nearest = min([one.trip_us for one in ones if one.trip_us >= 0], default=0)
        for one in ones:
            one.add_trip(nearest, self._settings)
        return self._pick(ones, now)

    def _candidate(self, beat: EngineHeartbeat, facts: RouteFacts, prompt: Prompt) -> Candidate:
        engine, found = beat.engine, None
        if facts.chain is not None:
            found = self.warmth.found(engine, facts.chain, facts.pieces)
        is_far = self._zone != beat.zone and self._zone != "" != beat.zone
        account = self.book.account(engine)
        return candidate(beat, account, found, prompt, self._settings, is_far=is_far)

    def _totals(self, ones: list[Candidate], now: float) -> list[float]:
        scene = Scene(
            settings=self._settings, now=now, least_tokens=min([one.tokens for one in ones])
        )
        totals = []
        for one in ones:
            total = 1.0
            for score, weight in self._scorers:
                # Most weights are 1, and a power costs as much as a score.
                total *= score(one, scene) if weight == 1.0 else score(one, scene) ** weight
            totals.append(total)
        return totals

    def _cold_totals(self, ones: list[Candidate], totals: list[float]) -> list[float]:
        """Return what the totals would be if nobody had anything of the prompt, but for a factor common to all."""
        weight = self._settings.load_weight
        return [
            total * (one.tokens / (one.tokens + one.saved_tokens)) ** weight
            for one, total in zip(ones, totals, strict=True)
        ]

    def _best(self, totals: list[float]) -> list[int]:
        """Return who is within the tie band."""
        bar = max(totals) * (1.0 - self._settings.tie_band)
        return [index for index, total in enumerate(totals) if total >= bar]

    def _pick(self, ones: list[Candidate], now: float) -> Route:
        totals = self._totals(ones, now)
        best = self._best(totals)
        chosen = best[0] if len(best) == 1 else self._random.choice(best)
        reason = RouteReason.BEST if len(best) == 1 else RouteReason.TIE
        if ones[chosen].saved_tokens and best != self._best(self._cold_totals(ones, totals)):
            reason = RouteReason.WARM
        return self._route(reason, ones[chosen], totals[chosen], considered=len(ones))

    def _route(
        self, reason: RouteReason, one: Candidate, total: float, *, considered: int
    ) -> Route:
        return Route(
            reason=reason,
            engine=one.engine,
            total=total,
            considered=considered,
            cached_tokens=one.cached_tokens,
            saved_tokens=int(one.saved_tokens),
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
