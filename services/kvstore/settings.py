"""Settings of a store's process: one frozen struct, read once at start; inner parts get only their own sub-struct.

Does not read files or the environment: `shared.settings` does.
"""

from __future__ import annotations

import msgspec

from shared.logs import LogSettings
from shared.settings import NatsSettings

PREFIX = "HEADRACE_KVSTORE_"
STOP_S = 3.0
"""What stopping takes beyond `drain_s`."""
MAX_MIRRORS = 2


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may wait, for each engine; beyond it a load is a miss and a save is not kept."""

    load_bytes: int = 4 << 30
    save_bytes: int = 1 << 30
    bite_bytes: int = 4 << 20
    """Jobs are cut into parts of this size, so that engines take turns and mirrors share the work."""


class DeadlineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a mirror counts as stalled, and is killed."""

    read_s: float = 1.0
    """A part of a load, or an answer to a ping."""
    write_s: float = 10.0
    """A part of a save: a disk that writes back what it was given before can be slow."""
    open_s: float = 120.0
    """Opening, with a look through all files after a power cut."""


class RebuildSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a mirror that came back gets what it lacks from the other one."""

    bytes_per_s: int = 200 << 20
    """Most of it; work of engines comes first in any case."""


class KvStoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One store process."""

    name: str = ""
    """What people call this process; empty: the host's name."""
    nats: NatsSettings = NatsSettings()
    log: LogSettings = LogSettings()
    bus: bool = True
    """Whether the store joins the bus: status and commands need it, engines do not."""
    metrics_host: str = "127.0.0.1"
    """Address of the metrics page."""
    metrics_port: int = 0
    """Port of the metrics page; 0: none."""
    folders: tuple[str, ...] = ()
    """One or two folders, on disks of their own: all is written to both, and read from the faster one."""
    socket: str = ""
    """Path of the Unix socket that engines connect to; only this user can."""
    budget_bytes: int = 20 << 30
    """What values may take on each disk."""
    correlated_s: float = 5.0
    """Uses of a value within so many seconds count as one."""
    max_engines: int = 64
    queue: QueueSettings = QueueSettings()
    deadline: DeadlineSettings = DeadlineSettings()
    rebuild: RebuildSettings = RebuildSettings()
    drain_s: float = 5.0
    """Time to finish what runs and to sync after SIGTERM."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.folders) <= MAX_MIRRORS:
            raise ValueError("folders names one folder, or two for mirrors")
        if len(set(self.folders)) != len(self.folders):
            raise ValueError("folders names the same folder twice")
        if not all(folder.startswith("/") for folder in (*self.folders, self.socket)):
            raise ValueError("folders and socket are absolute paths")
        if self.budget_bytes <= 0:
            raise ValueError("budget_bytes must be above 0; a platform without a store starts none")
