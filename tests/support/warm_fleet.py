"""A fleet of simulated engines under a recorded trace, routed by the real router with the real books of warmth: events on a heap, no loop.

What is simulated is the engines: a queue for prompts, a pool of blocks with the fake's prefix cache, answers at a fixed pace. What is real:
chains of the prompts' text, block map, news, view, costs, router. The trace gives the prompts' blocks by number; their text is made of
these numbers, so prompts share text where they shared blocks.
"""

from __future__ import annotations

import csv
import gzip
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from services.engine.adapters.fake_prefix import PrefixCache
from services.engine.warmth.map import BlockMap
from services.engine.warmth.pieces import PieceBook
from services.gateway.costs import ANSWER_TOKEN_BYTES
from services.gateway.routing import RouteFacts, Router, RoutingSettings
from shared.ids import EngineId, ServiceName, StreamNo
from shared.messages import Chain, EngineHeartbeat, EngineState, Warmth
from shared.prefixes import chain_of_text, unpacked

BLOCK_TOKENS = 512
"""Of a block in Mooncake's trace."""
BYTES_PER_TOKEN = 4
ASSUMED_ANSWER = 512
"""What a gateway takes a request without `max_tokens` to generate."""
TICK_S = 0.1
BEAT_S = 0.5
SERVICE = ServiceName("m")
MAX_NEWS = 4096
FAR_S = 0.001
"""From one zone to another."""


class Asked(NamedTuple):
    """One request of a trace."""

    at: float
    prompt_tokens: int
    answer_tokens: int
    blocks: tuple[int, ...]

    @property
    def session(self) -> int:
        """What the requests of one user have in common, as far as the trace shows: the block behind the system prompt."""
        return self.blocks[min(1, len(self.blocks) - 1)]


class Model(NamedTuple):
    """What a simulated engine can do."""

    prefill_tokens_per_s: float = 8000.0
    token_s: float = 0.03
    pool_blocks: int = 1200
    """Of 512 tokens: 600,000 tokens, 80 GB at 128 KiB a token."""
    prefill_share_full: float = 0.5
    """What is left of the prefill speed where `full_streams` are answered."""
    full_streams: int = 64


class Result(NamedTuple):
    """What came of a trace."""

    ttfts: list[float]
    prompt_tokens: int
    cached_tokens: int
    cross_bytes: int
    all_bytes: int
    warm: int
    counts: list[int]
    """Requests by engine."""

    def quantile(self, share: float) -> float:
        """Return a quantile of the time to the first token."""
        return sorted(self.ttfts)[min(len(self.ttfts) - 1, int(len(self.ttfts) * share))]


def read_trace(path: Path, *, rows: int | None = None, pace: float = 1.0) -> list[Asked]:
    """Return requests of a Mooncake trace, with the jitter that its rounded times need; `pace`: faster than recorded."""
    with gzip.open(path, "rt") as text:
        found = [
            Asked(
                (float(row["timestamp_s"]) + _jitter(number)) / pace,
                int(row["prompt_tokens"]),
                int(row["output_tokens"]),
                tuple(map(int, row["hash_ids"].split())),
            )
            for number, row in enumerate(itertools.islice(csv.DictReader(text), rows))
        ]
    return sorted(found)


def _jitter(number: int) -> float:
    digest = blake2b(b"%d" % number, digest_size=4).digest()
    return 3.0 * int.from_bytes(digest, "little") / 2**32


@lru_cache(maxsize=1 << 17)
def _block_text(block: int) -> bytes:
    return block.to_bytes(8, "little") * (BLOCK_TOKENS * BYTES_PER_TOKEN // 8)


def chain_for(asked: Asked) -> Chain:
    """Return the chain of the text that stands for a request's prompt."""
    text = b"".join(map(_block_text, asked.blocks))[: asked.prompt_tokens * BYTES_PER_TOKEN]
    return chain_of_text(text, seed=1)


class Job:
    """A request under way."""

    def __init__(self, asked: Asked, chain: Chain, arrived: float) -> None:
        self.asked = asked
        self.chain = chain
        self.arrived = arrived
        self.full = asked.blocks[: asked.prompt_tokens // BLOCK_TOKENS]
        self.held = 0
        self.first_at = 0.0
        self.on_first: Callable[[], None] = lambda: None
        self.on_end: Callable[[], None] = lambda: None


class SimEngine:
    """One engine."""

    def __init__(self, name: str, model: Model, zone: str) -> None:
        self.engine = EngineId(name)
        self.zone = zone
        self.model = model
        self.queue: deque[Job] = deque()
        self.busy = False
        self.decoding: dict[int, Job] = {}
        self.cache = PrefixCache(block_tokens=BLOCK_TOKENS)
        self.used_blocks = 0
        self.pieces = PieceBook(32_768)
        self.map = BlockMap(self.pieces)
        self.seq = 0
        self.beats = 0
        self.computing: Job | None = None
        self.served = 0

    def heartbeat(self, now: float) -> EngineHeartbeat:
        """Return what it says of itself."""
        waiting = [*self.queue, *([self.computing] if self.computing else [])]
        owed = sum(job.asked.prompt_tokens + ASSUMED_ANSWER for job in waiting)
        for job in self.decoding.values():
            owed += max(0, ASSUMED_ANSWER - int((now - job.first_at) / self.model.token_s))
        self.beats += 1
        return EngineHeartbeat(
            engine=self.engine,
            service=SERVICE,
            beat=self.beats,
            state=EngineState.READY,
            backend="fake",
            zone=self.zone,
            max_model_len=1 << 20,
            max_streams=256,
            running=len(self.decoding),
            waiting=len(waiting),
            outstanding_tokens=owed,
            warmth_seq=self.seq,
        )

    def news(self) -> Warmth | None:
        """Return what it has to tell of its prefixes."""
        if not self.pieces.has_news:
            return None
        self.seq += 1
        hashes, tiers = self.pieces.news(MAX_NEWS)
        return Warmth(service=SERVICE, engine=self.engine, seq=self.seq, hashes=hashes, tiers=tiers)

    def begin(self, job: Job) -> tuple[float, int]:
        """Start a prompt; return how long it takes and how much of it was there."""
        model, asked = self.model, job.asked
        cached = self.cache.found_tokens(job.full, asked.prompt_tokens)
        job.held = -(-cached // BLOCK_TOKENS)
        self.cache.hold(job.full[: job.held])
        self.used_blocks += len(asked.blocks)
        self.cache.squeeze(model.pool_blocks - self.used_blocks)
        slowed = min(1.0, len(self.decoding) / model.full_streams) * (1 - model.prefill_share_full)
        took = (asked.prompt_tokens - cached) / (model.prefill_tokens_per_s * (1 - slowed))
        return took + model.token_s, cached

    def computed(self, job: Job) -> None:
        """Note that a prompt is done."""
        self.cache.fill("job", job.full, job.asked.prompt_tokens, held=job.held)
        news = self.cache.news()
        if news is not None:
            self.map.apply(news)
            for prompt in news.prompts:
                self.map.prompt(job.chain, prompt)

    def ended(self, job: Job) -> None:
        """Note that an answer is complete."""
        self.cache.release(job.full)
        self.used_blocks -= len(job.asked.blocks)


Pick = Callable[["Fleet", int, Asked, Chain, float], int]
"""Chooses an engine by index: fleet, gateway, request, its chain, now."""


class Fleet:
    """Engines, and gateways of which each has a router of its own."""

    def __init__(
        self,
        *,
        engines: int,
        model: Model,
        settings: RoutingSettings,
        gateways: int = 1,
        zones: int = 1,
        hears: bool = True,
    ) -> None:
        """`hears`: whether news of warmth arrive."""
        name = ["a", "b", "c", "d"]
        self.zones = zones
        self.hears = hears
        self.engines = [
            SimEngine(f"e{n}", model, name[n % zones] if zones > 1 else "") for n in range(engines)
        ]
        self.index = {engine.engine: n for n, engine in enumerate(self.engines)}
        self.gateway_zones = [name[n % zones] if zones > 1 else "" for n in range(gateways)]
        self.routers = [
            Router(settings, seed=n + 1, zone=zone) for n, zone in enumerate(self.gateway_zones)
        ]
        self.beats: list[EngineHeartbeat] = []
        self.turn = 0
        self.warm = 0
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self._streams = itertools.count(1)

    def run(self, trace: Sequence[Asked], pick: Pick) -> Result:
        """Live through a trace."""
        self.ttfts: list[float] = []
        self.prompt_tokens = self.cached_tokens = self.cross_bytes = self.all_bytes = 0
        self._beat(-60.0)  # past the slow start
        ends_at = trace[-1].at
        self._every(TICK_S, 0.0, ends_at, self._tick)
        self._every(BEAT_S, 0.0, ends_at, self._beat)
        for asked in trace:
            self._at(asked.at, lambda now, asked=asked: self._arrive(asked, pick, now))
        while self._events:
            now, _, act = heapq.heappop(self._events)
            act(now)
        counts = [engine.served for engine in self.engines]
        return Result(
            self.ttfts,
            self.prompt_tokens,
            self.cached_tokens,
            self.cross_bytes,
            self.all_bytes,
            self.warm,
            counts,
        )

    def _at(self, when: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), act))

    def _every(self, period: float, at: float, end: float, act: Callable[[float], None]) -> None:
        def again(now: float) -> None:
            act(now)
            if now + period < end:
                self._at(now + period, again)

        self._at(at, again)

    def _tick(self, _now: float) -> None:
        for engine in self.engines:
            news = engine.news()
            if news is not None and self.hears:
                for router in self.routers:
                    router.warmth.hear(news)

    def _beat(self, now: float) -> None:
        self.beats = [engine.heartbeat(now) for engine in self.engines]
        for router in self.routers:
            for beat in self.beats:
                router.book.account(beat.engine).observe(beat, now=now)
                router.warmth.beat(beat.engine, beat.warmth_seq)

    def _arrive(self, asked: Asked, pick: Pick, now: float) -> None:
        chain = chain_for(asked)
        gateway = _spread(asked.session, len(self.routers))
        engine = self.engines[pick(self, gateway, asked, chain, now)]
        self._count(asked, engine, gateway)
        account = self.routers[gateway].book.account(engine.engine)
        stream = StreamNo(next(self._streams))
        work = asked.prompt_tokens + ASSUMED_ANSWER
        account.sent(stream, work_tokens=work, saved_tokens=self._saved, choices=1)
        account.answered(stream)
        job = Job(asked, chain, now)
        unused = ASSUMED_ANSWER - asked.answer_tokens
        job.on_first = lambda: account.begun(stream)
        job.on_end = lambda: account.ended(stream, unused_tokens=unused)
        engine.queue.append(job)
        self._go_on(engine, now)

    _saved = 0

    def _count(self, asked: Asked, engine: SimEngine, gateway: int) -> None:
        size = asked.prompt_tokens * BYTES_PER_TOKEN + asked.answer_tokens * ANSWER_TOKEN_BYTES
        self.all_bytes += size
        if engine.zone != self.gateway_zones[gateway]:
            self.cross_bytes += size
        engine.served += 1

    def _go_on(self, engine: SimEngine, now: float) -> None:
        if engine.computing is not None or not engine.queue:
            return
        job = engine.computing = engine.queue.popleft()
        took, cached = engine.begin(job)
        self.prompt_tokens += job.asked.prompt_tokens
        self.cached_tokens += cached
        self._at(now + took, lambda at: self._computed(engine, job, at))

    def _computed(self, engine: SimEngine, job: Job, now: float) -> None:
        engine.computed(job)
        engine.computing = None
        far = engine.zone != self.gateway_zones[_spread(job.asked.session, len(self.routers))]
        self.ttfts.append(now - job.arrived + (2 * FAR_S if far else 0.0))
        job.first_at = now
        job.on_first()
        engine.decoding[id(job)] = job
        self._at(
            now + job.asked.answer_tokens * engine.model.token_s,
            lambda _at: self._ended(engine, job),
        )
        self._go_on(engine, now)

    def _ended(self, engine: SimEngine, job: Job) -> None:
        del engine.decoding[id(job)]
        engine.ended(job)
        job.on_end()


def routed(fleet: Fleet, gateway: int, asked: Asked, chain: Chain, now: float) -> int:
    """Ask the real router."""
    route = fleet.routers[gateway].choose(
        fleet.beats,
        RouteFacts(
            service=SERVICE,
            work_tokens=asked.prompt_tokens + ASSUMED_ANSWER,
            chain=chain,
            pieces=unpacked(chain.hashes),
            prompt_bytes=asked.prompt_tokens * BYTES_PER_TOKEN,
        ),
        now=now,
        gateways=len(fleet.routers),
    )
    assert route.engine is not None
    fleet.warm += route.reason == "warm"
    fleet._saved = route.saved_tokens
    return fleet.index[route.engine]


def round_robin(fleet: Fleet, _gateway: int, _asked: Asked, _chain: Chain, _now: float) -> int:
    """Take one after the other."""
    fleet.turn += 1
    return fleet.turn % len(fleet.engines)


def prefix_hash(fleet: Fleet, _gateway: int, asked: Asked, _chain: Chain, _now: float) -> int:
    """Peers' way: consistent hashing of the first 2,048 tokens with bounded loads (1.25 times the mean in flight), one view for all."""
    running = [len(e.queue) + len(e.decoding) + (e.computing is not None) for e in fleet.engines]
    bound = 1.25 * (sum(running) + 1) / len(running)
    for index in _ring(asked.blocks[:4], len(running)):
        if running[index] + 1 <= bound:
            return index
    return min(range(len(running)), key=running.__getitem__)


def _ring(blocks: tuple[int, ...], engines: int) -> Iterator[int]:
    """Yield the engines in the order of rendezvous hashing."""
    key = repr(blocks).encode()
    yield from sorted(
        range(engines), key=lambda n: blake2b(b"%d" % n + key, digest_size=8).digest()
    )


def _spread(session: int, ways: int) -> int:
    return int.from_bytes(blake2b(b"%d" % session, digest_size=4).digest(), "little") % ways


COLD = RoutingSettings(
    warm_share_l1=0.0, warm_share_l2=0.0, warm_share_l3=0.0, far_tokens_per_kb=0.0
)
"""The router without warmth and distance: least load."""
