"""Identifiers as distinct types, so that a request id cannot be passed where an engine id belongs."""

from __future__ import annotations

import secrets
from typing import NewType

RequestId = NewType("RequestId", str)
"""One request of a client, made by the gateway (`chatcmpl-…`, `cmpl-…`). A caller's own id is only a label."""

StreamNo = NewType("StreamNo", int)
"""One attempt of one prompt at one engine; unique within its gateway process, never reused."""

EngineId = NewType("EngineId", str)
"""One engine process life. A restarted engine has a new id."""

GatewayId = NewType("GatewayId", str)
"""One gateway process life."""

TracerId = NewType("TracerId", str)
"""One tracer process life."""

KvStoreId = NewType("KvStoreId", str)
"""One life of the KV store process of a host."""

HostId = NewType("HostId", str)
"""One life of the process that runs replicas on a host."""

OperatorId = NewType("OperatorId", str)
"""One operator process life."""

ServiceName = NewType("ServiceName", str)
"""Name of an LLM service; what clients put into `model`."""

TenantId = NewType("TenantId", str)
"""Who is billed for a request: the API key's name, or `anonymous`."""

ID_BYTES = 8
"""64 random bits: a collision among 10 million live ids has a chance of 3e-6."""


def new_engine_id() -> EngineId:
    """Return a fresh engine id, safe as a NATS subject token."""
    return EngineId("e" + secrets.token_hex(ID_BYTES))


def new_gateway_id() -> GatewayId:
    """Return a fresh gateway id, safe as a NATS subject token."""
    return GatewayId("g" + secrets.token_hex(ID_BYTES))


def new_tracer_id() -> TracerId:
    """Return a fresh tracer id, safe as a NATS subject token."""
    return TracerId("t" + secrets.token_hex(ID_BYTES))


def new_kv_store_id() -> KvStoreId:
    """Return a fresh store id, safe as a NATS subject token."""
    return KvStoreId("k" + secrets.token_hex(ID_BYTES))


def new_host_id() -> HostId:
    """Return a fresh host id, safe as a NATS subject token."""
    return HostId("h" + secrets.token_hex(ID_BYTES))


def new_operator_id() -> OperatorId:
    """Return a fresh operator id, safe as a NATS subject token."""
    return OperatorId("o" + secrets.token_hex(ID_BYTES))


def new_request_id(prefix: str) -> RequestId:
    """Return a fresh request id that begins with `prefix` and a dash."""
    return RequestId(f"{prefix}-{secrets.token_hex(ID_BYTES + ID_BYTES // 2)}")
