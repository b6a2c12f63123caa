"""Where each message travels: the table is the architecture diagram of the bus."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from shared.messages.capture import Captured, CaptureQuery, CaptureState, CaptureSwitch
from shared.messages.engine import EngineHeartbeat, Resent, TokenBatch
from shared.messages.gateway import Accepted, Cancel, GatewayHeartbeat, Refused, Resend, Submit
from shared.messages.host import HostAnswer, HostHeartbeat, StartReplica, StopReplica
from shared.messages.kvstore import (
    KvListing,
    KvListQuery,
    KvMirrorNews,
    KvPurge,
    KvPurged,
    KvStats,
    KvStatsQuery,
    KvStoreHeartbeat,
    KvVerified,
    KvVerify,
)
from shared.messages.ledger import BlackBox, FoundBlackBox, LedgerBatch
from shared.messages.parts import Message
from shared.messages.records import (
    DesiredRecord,
    LeaseRecord,
    OperatorHeartbeat,
    RecordChanged,
    ServiceRecord,
    StatusRecord,
)
from shared.messages.stages import StageBatch, StepDetail, StepQuery
from shared.messages.tracer import TracerHeartbeat
from shared.messages.warmth import Warmth, WarmthQuery, WarmthWhole

HEARTBEAT_S = 0.5
ENGINE_GONE_S = 1.9
"""Silence that means death: three beats missed. With a look at the clock each 100 ms it is noticed within 2 s."""
GATEWAY_GONE_S = 1.9


class Delivery(StrEnum):
    """How the bus carries a message."""

    CORE = "core"
    """At most once, now or never."""
    REQUEST = "request"
    """Core with exactly one awaited reply."""
    STREAM = "stream"
    """As core, and the server keeps it for a while (`Route.stream`), so that who comes later can read it."""
    RECORD = "record"
    """The server keeps the newest one of each key on disk (`Route.bucket`); written by comparing (`shared.records`)."""


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """What the server keeps of a subject, in memory; the oldest goes first."""

    name: str
    max_age_s: float
    max_bytes: int


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket of JetStream's key-value store."""

    name: str
    keeper: str
    """The service that sees to it that the bucket is there."""
    history: int = 1
    """States that are kept of each key, the present one included."""
    max_bytes: int = 64 << 20


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message travels: `{field}` in the subject is filled from the message."""

    subject: str
    delivery: Delivery
    owner: str
    readers: tuple[str, ...]
    replies: tuple[type[Message], ...] = ()
    key: str | None = None
    """Field whose messages keep their order."""
    stream: Stream | None = None
    bucket: Bucket | None = None
    writers: tuple[str, ...] = ()
    """Who may send it beside its owner."""


ROUTES: dict[type[Message], Route] = {
    Submit: Route(
        subject="hr.engine.{engine}.submit",
        delivery=Delivery.REQUEST,
        owner="gateway",
        readers=("engine",),
        replies=(Accepted, Refused),
    ),
    Cancel: Route(
        subject="hr.engine.{engine}.cancel",
        delivery=Delivery.CORE,
        owner="gateway",
        readers=("engine",),
        key="stream",
    ),
    Resend: Route(
        subject="hr.engine.{engine}.resend",
        delivery=Delivery.REQUEST,
        owner="gateway",
        readers=("engine",),
        replies=(Resent,),
    ),
    TokenBatch: Route(
        subject="hr.tokens.{gateway}",
        delivery=Delivery.CORE,
        owner="engine",
        readers=("gateway",),
        key="engine",
    ),
    EngineHeartbeat: Route(
        subject="hr.heartbeat.engine.{service}.{engine}",
        delivery=Delivery.CORE,
        owner="engine",
        readers=("gateway", "console", "operator", "host"),
        key="engine",
    ),
    GatewayHeartbeat: Route(
        subject="hr.heartbeat.gateway.{gateway}",
        delivery=Delivery.CORE,
        owner="gateway",
        readers=("gateway", "engine", "console"),
        key="gateway",
    ),
    CaptureSwitch: Route(
        subject="hr.gateway.{gateway}.capture",
        delivery=Delivery.REQUEST,
        owner="console",
        readers=("gateway",),
        replies=(CaptureState,),
    ),
    CaptureQuery: Route(
        subject="hr.gateway.{gateway}.captured",
        delivery=Delivery.REQUEST,
        owner="console",
        readers=("gateway",),
        replies=(Captured,),
    ),
    TracerHeartbeat: Route(
        subject="hr.heartbeat.tracer.{tracer}",
        delivery=Delivery.CORE,
        owner="tracer",
        readers=("console",),
        key="tracer",
    ),
    StageBatch: Route(
        subject="hr.stage.{service}.{engine}",
        delivery=Delivery.CORE,
        owner="engine",
        readers=("tracer", "console"),
        key="engine",
    ),
    LedgerBatch: Route(
        subject="hr.ledger.{service}",
        delivery=Delivery.STREAM,
        owner="gateway",
        readers=("tracer", "console"),
        key="gateway",
        stream=Stream(name="HR_LEDGER", max_age_s=3600.0, max_bytes=256 << 20),
    ),
    Warmth: Route(
        subject="hr.warmth.{service}.{engine}",
        delivery=Delivery.CORE,
        owner="engine",
        readers=("gateway",),
        key="engine",
    ),
    WarmthQuery: Route(
        subject="hr.engine.{engine}.warmth",
        delivery=Delivery.REQUEST,
        owner="gateway",
        readers=("engine",),
        replies=(WarmthWhole,),
    ),
    StepQuery: Route(
        subject="hr.engine.{engine}.steps",
        delivery=Delivery.REQUEST,
        owner="console",
        readers=("engine",),
        replies=(StepDetail,),
    ),
    BlackBox: Route(
        subject="hr.blackbox.{service}.{engine}",
        delivery=Delivery.CORE,
        owner="host",
        readers=("tracer", "console"),
        key="engine",
    ),
    FoundBlackBox: Route(
        subject="hr.blackbox.{service}.{engine}.found",
        delivery=Delivery.CORE,
        owner="engine",
        readers=("tracer",),
        key="engine",
    ),
    KvStoreHeartbeat: Route(
        subject="hr.heartbeat.kvstore.{store}",
        delivery=Delivery.CORE,
        owner="kvstore",
        readers=("console",),
        key="store",
    ),
    KvMirrorNews: Route(
        subject="hr.kvstore.{store}.mirror",
        delivery=Delivery.CORE,
        owner="kvstore",
        readers=("console", "tracer"),
        key="store",
    ),
    KvStatsQuery: Route(
        subject="hr.kvstore.{store}.stats",
        delivery=Delivery.REQUEST,
        owner="console",
        readers=("kvstore",),
        replies=(KvStats,),
    ),
    KvListQuery: Route(
        subject="hr.kvstore.{store}.list",
        delivery=Delivery.REQUEST,
        owner="console",
        readers=("kvstore",),
        replies=(KvListing,),
    ),
    KvVerify: Route(
        subject="hr.kvstore.{store}.verify",
        delivery=Delivery.REQUEST,
        owner="console",
        readers=("kvstore",),
        replies=(KvVerified,),
    ),
    KvPurge: Route(
        subject="hr.kvstore.{store}.purge",
        delivery=Delivery.REQUEST,
        owner="console",
        readers=("kvstore",),
        replies=(KvPurged,),
    ),
    HostHeartbeat: Route(
        subject="hr.heartbeat.host.{host}",
        delivery=Delivery.CORE,
        owner="host",
        readers=("operator", "console"),
        key="host",
    ),
    StartReplica: Route(
        subject="hr.host.{host}.start",
        delivery=Delivery.REQUEST,
        owner="operator",
        readers=("host",),
        replies=(HostAnswer,),
    ),
    StopReplica: Route(
        subject="hr.host.{host}.stop",
        delivery=Delivery.REQUEST,
        owner="operator",
        readers=("host",),
        replies=(HostAnswer,),
    ),
    OperatorHeartbeat: Route(
        subject="hr.heartbeat.operator.{operator}",
        delivery=Delivery.CORE,
        owner="operator",
        readers=("console",),
        key="operator",
    ),
    RecordChanged: Route(
        subject="hr.record.{bucket}.{key}",
        delivery=Delivery.CORE,
        owner="operator",
        writers=("console",),
        readers=("operator", "gateway", "tracer", "console"),
        key="key",
    ),
    ServiceRecord: Route(
        subject="$KV.hr-services.{service}",
        delivery=Delivery.RECORD,
        owner="console",
        writers=("operator",),
        readers=("operator", "gateway", "tracer", "console"),
        key="service",
        bucket=Bucket(name="hr-services", keeper="operator", history=8),
    ),
    DesiredRecord: Route(
        subject="$KV.hr-desired.{service}",
        delivery=Delivery.RECORD,
        owner="console",
        writers=("operator",),
        readers=("operator", "console"),
        key="service",
        bucket=Bucket(name="hr-desired", keeper="operator", history=8),
    ),
    StatusRecord: Route(
        subject="$KV.hr-status.{service}",
        delivery=Delivery.RECORD,
        owner="operator",
        readers=("operator", "console"),
        key="service",
        bucket=Bucket(name="hr-status", keeper="operator"),
    ),
    LeaseRecord: Route(
        subject="$KV.hr-leases.{role}",
        delivery=Delivery.RECORD,
        owner="operator",
        readers=("operator", "console"),
        key="role",
        bucket=Bucket(name="hr-leases", keeper="operator"),
    ),
}

ALL_MESSAGES: tuple[type[Message], ...] = tuple(
    dict.fromkeys(
        (*ROUTES, *(reply for route in ROUTES.values() for reply in route.replies)),
    )
)
