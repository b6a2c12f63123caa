"""Settings of a tracer process: one frozen struct, read once at start; inner parts get only their own sub-struct.

Does not read files or the environment: `shared.settings` does.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from services.tracer.outbox import OutboxSettings
from shared.logs import LogSettings
from shared.settings import NatsSettings, Secret

PREFIX = "HEADRACE_TRACER_"
STOP_S = 3.0
"""What stopping takes beyond `drain_s`."""


class OtlpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where traces go."""

    url: str = ""
    """Address of a collector: `http://127.0.0.1:4318` (with `/v1/traces` where it has no path), `https://…`,
    `grpc://127.0.0.1:4317`, `grpcs://…`; empty: nowhere, and no trace is made."""
    protocol: Literal["auto", "http", "grpc"] = "auto"
    """`auto`: gRPC for `grpc` addresses and for port 4317, else HTTP."""
    headers: Secret = Secret()
    """Sent with each request, as `api-key=…,tenant=…`; `headers_file` names a file that holds them."""
    compression: Literal["gzip", "none"] = "gzip"


class TracerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tracer process."""

    name: str = ""
    """What people call this process, in the bus's list of connections."""
    nats: NatsSettings = NatsSettings()
    log: LogSettings = LogSettings()
    metrics_host: str = "127.0.0.1"
    """Address of the metrics page."""
    metrics_port: int = 9103
    """Port of the metrics page; 0: none."""
    policies: str = ""
    """YAML or JSON file with what services want of their traces (docs/how-to/tracing.md)."""
    max_traces_per_s: float = 200.0
    """Hard bound of the traces that this process keeps, over all services."""
    drain_s: float = 5.0
    """Time that traces get to leave after SIGTERM."""
    otlp: OtlpSettings = OtlpSettings()
    outbox: OutboxSettings = OutboxSettings()

    def __post_init__(self) -> None:
        if self.max_traces_per_s <= 0:
            raise ValueError("max_traces_per_s must be above 0")
