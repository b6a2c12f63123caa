"""`headrace status`: what is alive now, learned from heartbeats alone, so that it tells the truth about a hung or dead process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from services.console.connection import on_bus
from services.console.fleet.instance import BusAddress
from services.console.plain import cleaned
from shared.messages import (
    HEARTBEAT_S,
    EngineHeartbeat,
    EngineState,
    GatewayHeartbeat,
    HostHeartbeat,
    KvStoreHeartbeat,
    Message,
    OperatorHeartbeat,
    ReplicaPhase,
    TracerHeartbeat,
)
from shared.natsbus import NatsBus
from shared.quantities import in_bytes

LISTEN_S = 2.5 * HEARTBEAT_S
"""Two beats of everybody who is alive, with room for a late one."""
HUNG_S = 2.0
"""A step that began longer ago than this, while there is work, is worth a remark."""


KINDS: dict[type[Message], str] = {
    EngineHeartbeat: "engine",
    GatewayHeartbeat: "gateway",
    TracerHeartbeat: "tracer",
    KvStoreHeartbeat: "store",
    HostHeartbeat: "host",
    OperatorHeartbeat: "operator",
}
"""Who is heard, and the field that tells one from another."""
L = TypeVar("L")


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


class HostLine(msgspec.Struct, frozen=True):
    """One host."""

    host: str
    name: str
    driver: str
    zone: str
    replicas: int
    running: int
    free_memory_bytes: int
    memory_bytes: int
    free_gpus: int
    gpus: int
    remark: str


class OperatorLine(msgspec.Struct, frozen=True):
    """One operator."""

    operator: str
    leads: bool
    epoch: int
    services: int
    replicas: int
    url: str
    remark: str


class Picture(msgspec.Struct, frozen=True):
    """Who was heard."""

    engines: list[EngineLine]
    gateways: list[GatewayLine]
    tracers: list[TracerLine]
    kv_stores: list[KvStoreLine]
    hosts: list[HostLine]
    operators: list[OperatorLine]

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


def host_line(beat: HostHeartbeat) -> HostLine:
    """Return what a person wants to know of a heartbeat."""
    troubles = [
        f"{state.name} is {state.phase}{f' ({state.restarts} restarts)' if state.restarts else ''}: {state.reason.splitlines()[0]}"
        for state in beat.replicas
        if state.phase in {ReplicaPhase.WAITING, ReplicaPhase.FAILED} and state.reason
    ]
    return HostLine(
        host=beat.host,
        name=beat.name,
        driver=beat.driver,
        zone=beat.zone,
        replicas=len(beat.replicas),
        running=sum(state.phase is ReplicaPhase.RUNNING for state in beat.replicas),
        free_memory_bytes=beat.free_memory_bytes,
        memory_bytes=beat.memory_bytes,
        free_gpus=beat.free_gpus,
        gpus=beat.gpus,
        remark="; ".join([*(["it ends"] if beat.is_draining else []), *troubles]),
    )


def operator_line(beat: OperatorHeartbeat) -> OperatorLine:
    """Return what a person wants to know of a heartbeat."""
    return OperatorLine(
        operator=beat.operator,
        leads=beat.leads,
        epoch=beat.epoch,
        services=beat.services,
        replicas=beat.replicas,
        url=beat.url,
        remark=beat.reason,
    )


async def observe(address: BusAddress) -> Picture:
    """Listen for a moment and return who was heard. Raises `UserError` where no bus answers."""
    heard: dict[type, dict[str, Any]] = {kind: {} for kind in KINDS}

    def hear(kind: type, key: str) -> Callable[[Any], None]:
        def on_beat(beat: Any) -> None:
            heard[kind][getattr(beat, key)] = cleaned(beat)

        return on_beat

    async def listen(bus: NatsBus) -> None:
        for kind, key in KINDS.items():
            await bus.subscribe(kind, hear(kind, key))
        await asyncio.sleep(LISTEN_S)

    await on_bus(address, listen, name="headrace status")

    def lines(kind: type, line: Callable[[Any], L]) -> list[L]:
        return [line(beat) for _, beat in sorted(heard[kind].items())]

    engines = lines(EngineHeartbeat, engine_line)
    return Picture(
        engines=sorted(engines, key=lambda line: (line.service, line.name)),
        gateways=lines(GatewayHeartbeat, gateway_line),
        tracers=lines(TracerHeartbeat, tracer_line),
        kv_stores=lines(KvStoreHeartbeat, kv_store_line),
        hosts=lines(HostHeartbeat, host_line),
        operators=lines(OperatorHeartbeat, operator_line),
    )


ENGINE_HEAD = f"{'ENGINE':<20}{'SERVICE':<16}{'STATE':<10}{'BACKEND':<9}{'RUN':>5}{'WAIT':>6}{'OF':>6}{'BLOCKS':>14}{'TOK/S':>9}{'STEP':>9}"
GATEWAY_HEAD = f"{'GATEWAY':<20}{'URL':<32}{'STREAMS':>8}{'QUEUED':>8}{'ENGINES':>9}"
TRACER_HEAD = (
    f"{'TRACER':<20}{'METRICS':<36}{'LEDGERS':>9}{'KEPT':>8}{'EXPORTED':>10}{'DROPPED':>9}"
)
STORE_HEAD = f"{'KV STORE':<20}{'VALUES':>10}{'USED':>10}{'OF':>10}{'HITS':>10}{'MISSES':>10}{'ENGINES':>9}  MIRRORS"

HOST_HEAD = f"{'HOST':<20}{'DRIVER':<12}{'ZONE':<10}{'RUNNING':>9}{'OF':>5}{'FREE MEMORY':>13}{'OF':>10}{'FREE GPUS':>11}{'OF':>5}"
OPERATOR_HEAD = f"{'OPERATOR':<20}{'LEADS':<7}{'EPOCH':>7}{'SERVICES':>10}{'REPLICAS':>10}"


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
    lines += _hosts(picture)
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


def _hosts(picture: Picture) -> list[str]:
    lines = ["", HOST_HEAD] if picture.hosts else []
    lines += [
        f"{h.name or h.host:<20}{h.driver:<12}{h.zone or '-':<10}{h.running:>9}{h.replicas:>5}{in_bytes(h.free_memory_bytes):>13}"
        f"{in_bytes(h.memory_bytes):>10}{h.free_gpus:>11}{h.gpus:>5}  {h.remark}".rstrip()
        for h in picture.hosts
    ]
    if picture.operators:
        lines += ["", OPERATOR_HEAD]
    lines += [
        f"{o.operator:<20}{'yes' if o.leads else 'no':<7}{o.epoch:>7}{o.services:>10}{o.replicas:>10}  {o.remark}".rstrip()
        for o in picture.operators
    ]
    return lines
