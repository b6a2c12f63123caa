"""`headrace status`: what is alive now, learned from heartbeats alone, so that it tells the truth about a hung or dead process."""

from __future__ import annotations

import asyncio

import msgspec

from services.console.connection import on_bus
from services.console.fleet.instance import BusAddress
from services.console.plain import cleaned
from shared.messages import (
    HEARTBEAT_S,
    EngineHeartbeat,
    EngineState,
    GatewayHeartbeat,
    KvStoreHeartbeat,
    TracerHeartbeat,
)
from shared.natsbus import NatsBus
from shared.quantities import in_bytes

LISTEN_S = 2.5 * HEARTBEAT_S
"""Two beats of everybody who is alive, with room for a late one."""
HUNG_S = 2.0
"""A step that began longer ago than this, while there is work, is worth a remark."""


class EngineLine(msgspec.Struct, frozen=True):
    """One engine."""

    name: str
    engine: str
    service: str
    state: str
    backend: str
    running: int
    waiting: int
    max_streams: int
    blocks_used: int
    blocks_total: int
    tokens_per_s: float
    step: int
    step_age_s: float
    remark: str


class GatewayLine(msgspec.Struct, frozen=True):
    """One gateway."""

    gateway: str
    url: str
    open_streams: int
    queued: int
    engines: int


class TracerLine(msgspec.Struct, frozen=True):
    """One tracer."""

    tracer: str
    url: str
    ledgers: int
    kept: int
    exported: int
    dropped: int
    remark: str


class KvStoreLine(msgspec.Struct, frozen=True):
    """One KV store."""

    store: str
    host: str
    values: int
    used_bytes: int
    budget_bytes: int
    hits: int
    misses: int
    engines: int
    mirrors: str
    remark: str


class Picture(msgspec.Struct, frozen=True):
    """Who was heard."""

    engines: list[EngineLine]
    gateways: list[GatewayLine]
    tracers: list[TracerLine]
    kv_stores: list[KvStoreLine]

    @property
    def is_serving(self) -> bool:
        """Whether a request would find a gateway and a ready engine."""
        return bool(self.gateways) and any(
            engine.state == EngineState.READY for engine in self.engines
        )


def _remark(beat: EngineHeartbeat) -> str:
    if beat.reason:
        return beat.reason
    return f"no step for {beat.step_age_s:.1f} s" if beat.step_age_s > HUNG_S else ""


def engine_line(beat: EngineHeartbeat) -> EngineLine:
    """Return what a person wants to know of a heartbeat."""
    return EngineLine(
        name=beat.name,
        engine=beat.engine,
        service=beat.service,
        state=beat.state,
        backend=beat.backend,
        running=beat.running,
        waiting=beat.waiting,
        max_streams=beat.max_streams,
        blocks_used=beat.total_blocks - beat.free_blocks,
        blocks_total=beat.total_blocks,
        tokens_per_s=beat.tokens_per_s,
        step=beat.step,
        step_age_s=beat.step_age_s,
        remark=_remark(beat),
    )


def gateway_line(beat: GatewayHeartbeat) -> GatewayLine:
    """Return what a person wants to know of a heartbeat."""
    return GatewayLine(
        gateway=beat.gateway,
        url=beat.url,
        open_streams=beat.open_streams,
        queued=beat.queued,
        engines=beat.engines,
    )


LEVELS = ("", "keeps fewer traces to save CPU", "keeps only failures to save CPU")


def tracer_line(beat: TracerHeartbeat) -> TracerLine:
    """Return what a person wants to know of a heartbeat."""
    return TracerLine(
        tracer=beat.tracer,
        url=beat.url,
        ledgers=beat.ledgers,
        kept=beat.kept,
        exported=beat.exported,
        dropped=beat.dropped,
        remark=LEVELS[min(beat.level, len(LEVELS) - 1)],
    )


def kv_store_line(beat: KvStoreHeartbeat) -> KvStoreLine:
    """Return what a person wants to know of a heartbeat."""
    return KvStoreLine(
        store=beat.store,
        host=beat.host,
        values=beat.values,
        used_bytes=beat.used_bytes,
        budget_bytes=beat.budget_bytes,
        hits=beat.hits,
        misses=beat.misses,
        engines=beat.engines,
        mirrors=", ".join(
            "read only" if mirror.read_only else mirror.state for mirror in beat.mirrors
        ),
        remark="; ".join(
            f"{mirror.folder}: {mirror.reason}" for mirror in beat.mirrors if mirror.reason
        ),
    )


async def observe(address: BusAddress) -> Picture:
    """Listen for a moment and return who was heard. Raises `UserError` where no bus answers."""
    engines: dict[str, EngineHeartbeat] = {}
    gateways: dict[str, GatewayHeartbeat] = {}
    tracers: dict[str, TracerHeartbeat] = {}
    stores: dict[str, KvStoreHeartbeat] = {}

    def on_engine(beat: EngineHeartbeat) -> None:
        engines[beat.engine] = cleaned(beat)

    def on_gateway(beat: GatewayHeartbeat) -> None:
        gateways[beat.gateway] = cleaned(beat)

    def on_tracer(beat: TracerHeartbeat) -> None:
        tracers[beat.tracer] = cleaned(beat)

    def on_store(beat: KvStoreHeartbeat) -> None:
        stores[beat.store] = cleaned(beat)

    async def listen(bus: NatsBus) -> None:
        await bus.subscribe(EngineHeartbeat, on_engine)
        await bus.subscribe(GatewayHeartbeat, on_gateway)
        await bus.subscribe(TracerHeartbeat, on_tracer)
        await bus.subscribe(KvStoreHeartbeat, on_store)
        await asyncio.sleep(LISTEN_S)

    await on_bus(address, listen, name="headrace status")
    return Picture(
        engines=[
            engine_line(beat)
            for _, beat in sorted(engines.items(), key=lambda item: (item[1].service, item[1].name))
        ],
        gateways=[gateway_line(beat) for _, beat in sorted(gateways.items())],
        tracers=[tracer_line(beat) for _, beat in sorted(tracers.items())],
        kv_stores=[kv_store_line(beat) for _, beat in sorted(stores.items())],
    )


ENGINE_HEAD = f"{'ENGINE':<20}{'SERVICE':<16}{'STATE':<10}{'BACKEND':<9}{'RUN':>5}{'WAIT':>6}{'OF':>6}{'BLOCKS':>14}{'TOK/S':>9}{'STEP':>9}"
GATEWAY_HEAD = f"{'GATEWAY':<20}{'URL':<32}{'STREAMS':>8}{'QUEUED':>8}{'ENGINES':>9}"
TRACER_HEAD = (
    f"{'TRACER':<20}{'METRICS':<36}{'LEDGERS':>9}{'KEPT':>8}{'EXPORTED':>10}{'DROPPED':>9}"
)
STORE_HEAD = f"{'KV STORE':<20}{'VALUES':>10}{'USED':>10}{'OF':>10}{'HITS':>10}{'MISSES':>10}{'ENGINES':>9}  MIRRORS"


def table(picture: Picture) -> str:
    """Return the picture for people."""
    lines = [ENGINE_HEAD]
    lines += [
        f"{e.name or e.engine:<20}{e.service:<16}{e.state:<10}{e.backend:<9}{e.running:>5}{e.waiting:>6}{e.max_streams:>6}"
        f"{f'{e.blocks_used}/{e.blocks_total}':>14}{e.tokens_per_s:>9.1f}{e.step:>9}  {e.remark}".rstrip()
        for e in picture.engines
    ] or ["  none was heard"]
    lines += ["", GATEWAY_HEAD]
    lines += [
        f"{g.gateway:<20}{g.url:<32}{g.open_streams:>8}{g.queued:>8}{g.engines:>9}"
        for g in picture.gateways
    ] or ["  none was heard"]
    if picture.tracers:
        lines += ["", TRACER_HEAD]
    lines += [
        f"{t.tracer:<20}{t.url:<36}{t.ledgers:>9}{t.kept:>8}{t.exported:>10}{t.dropped:>9}  {t.remark}".rstrip()
        for t in picture.tracers
    ]
    if picture.kv_stores:
        lines += ["", STORE_HEAD]
    lines += [
        f"{s.store:<20}{s.values:>10}{in_bytes(s.used_bytes):>10}{in_bytes(s.budget_bytes):>10}{s.hits:>10}{s.misses:>10}"
        f"{s.engines:>9}  {s.mirrors}  {s.remark}".rstrip()
        for s in picture.kv_stores
    ]
    return "\n".join(lines)
