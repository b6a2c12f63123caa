"""Settings of a gateway process: one frozen struct, read once at start; inner parts get only their own sub-struct.

Does not read files or the environment: `shared.settings` does.
"""

from __future__ import annotations

import msgspec

from services.gateway.admission.verdict import AdmissionSettings
from services.gateway.calls import CallSettings
from services.gateway.http.settings import HttpSettings
from services.gateway.http_api import HttpApiSettings
from services.gateway.openai.limits import RequestLimits
from services.gateway.routing import RoutingSettings
from services.gateway.sharing import SharingSettings
from services.gateway.streams import StreamSettings
from shared.logs import LogSettings
from shared.settings import NatsSettings

PREFIX = "HEADRACE_GATEWAY_"


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One gateway process."""

    name: str = ""
    """What people call this process, in the bus's list of connections."""
    zone: str = ""
    """Where this gateway runs; it prefers engines of the same zone. Empty: all engines count as near."""
    nats: NatsSettings = NatsSettings()
    log: LogSettings = LogSettings()
    http: HttpSettings = HttpSettings()
    api: HttpApiSettings = HttpApiSettings()
    nats_api: bool = True
    """Whether to answer requests over NATS as well."""
    metrics_host: str = "127.0.0.1"
    """Address of a metrics page of its own."""
    metrics_port: int = 0
    """Port of that page; 0: none. `/metrics` of the HTTP API has the same, but of whichever gateway answers where several share a port."""
    keys_file: str = ""
    """File of API keys (`headrace key new`); none: everybody may call, which is refused beyond loopback."""
    insecure_no_auth: bool = False
    """Listen beyond loopback without API keys: everybody who reaches the port may use the models."""
    drain_s: float = 30.0
    """Time that running answers get to finish after SIGTERM."""
    ledger_replicas: int = 1
    """Servers of a NATS cluster that keep the ledgers of the last hour, each in its memory; with 1 they are lost when that one restarts."""
    call: CallSettings = CallSettings()
    limits: RequestLimits = RequestLimits()
    admission: AdmissionSettings = AdmissionSettings()
    routing: RoutingSettings = RoutingSettings()
    sharing: SharingSettings = SharingSettings()
    streams: StreamSettings = StreamSettings()
