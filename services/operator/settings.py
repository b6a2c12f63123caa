"""Settings of an operator's process: one frozen struct, read once at start; inner parts get only their own sub-struct.

Does not read files or the environment: `shared.settings` does.
"""

from __future__ import annotations

import msgspec

from shared.logs import LogSettings
from shared.settings import NatsSettings

PREFIX = "HEADRACE_OPERATOR_"
STOP_S = 3.0
"""What giving the lead back and flushing the bus takes."""


class OperatorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One operator process; of several one leads."""

    name: str = ""
    """What people call this process, in the bus's list of connections."""
    nats: NatsSettings = NatsSettings()
    log: LogSettings = LogSettings()
    metrics_host: str = "127.0.0.1"
    """Address of the metrics page."""
    metrics_port: int = 0
    """Port of the metrics page; 0: none."""
    lease_s: float = 3.0
    """How long a leader may be silent before another one leads; the same for all of a platform."""
    listen_s: float = 1.6
    """How long a new leader listens to hosts before it acts: three of their heartbeats, so that it adopts what runs."""
    hosts: int = 0
    """How many hosts there are, where that is known: once all were heard, a new leader need not listen any longer. 0: not known."""
    look_s: float = 1.0
    """Between two looks at the fleet where nothing changes."""
    order_timeout_s: float = 5.0
    """How long a host may take to answer an order."""
    orders: int = 16
    """Orders, and writes of states, under way at the same time."""
    drain_s: float = 30.0
    """Time that running answers get where a replica is stopped."""
    bucket_replicas: int = 1
    """Servers of a NATS cluster that keep the records."""
