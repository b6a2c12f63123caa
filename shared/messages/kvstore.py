"""What the KV store of a host says of itself, and what the console may ask it. Loads and saves never cross the bus (decision 8)."""

from __future__ import annotations

from shared.ids import KvStoreId
from shared.messages.parts import Message, Value


class MirrorPicture(Value, frozen=True, kw_only=True):
    """One mirror: a folder on a disk."""

    folder: str
    state: str
    """`healthy`, `rebuilding` (serves, and gets what it lacks), `opening`, `ending`, `stuck` (waits for its disk, killed), `down`."""
    serves: bool
    read_only: bool = False
    """It reads and takes nothing: its disk is full or was made read-only."""
    trouble: str = ""
    """Why it is not, or was last not, in order: `full`, `io`, `stalled`, `crashed`, `damaged`, `vanished`, `read_only`, `killed`."""
    reason: str = ""
    drops: int = 0
    """Times it was taken out of service since the store's start."""
    drop_s: float = 0.0
    """How long the last one took."""
    values: int = 0
    file_bytes: int = 0
    free_bytes: int = 0
    """What its disk has left."""
    read_bytes_per_s: float = 0.0
    """Measured, smoothed; 0: not yet."""
    write_bytes_per_s: float = 0.0


class KvStoreHeartbeat(Message, tag="kvstore.heartbeat.v1", frozen=True, kw_only=True):
    """A store is alive: each 500 ms, and when a mirror comes or goes. Counts are since its start."""

    store: KvStoreId
    beat: int
    host: str = ""
    name: str = ""
    mirrors: list[MirrorPicture] = []
    values: int = 0
    used_bytes: int = 0
    budget_bytes: int = 0
    """What values may take on each disk."""
    hits: int = 0
    """Values loaded."""
    misses: int = 0
    """Values asked for and not loaded, whatever the reason."""
    saves: int = 0
    """Values kept, or there already."""
    unsaved: int = 0
    """Values that were to be kept and were not."""
    evicted: int = 0
    corrupt: int = 0
    """Values that did not check out, and were deleted."""
    loaded_bytes: int = 0
    saved_bytes: int = 0
    engines: int = 0
    waiting_loads: int = 0
    """Parts of loads that wait for a mirror."""
    waiting_saves: int = 0
    url: str = ""
    """Its metrics page."""


class KvMirrorNews(Message, tag="kvstore.mirror.v1", frozen=True, kw_only=True):
    """A mirror was taken out of service, or is back: from the store, at once.

    No request is concerned: what it had is read elsewhere, or computed.
    """

    store: KvStoreId
    host: str
    mirror: MirrorPicture
    unix_s: float


class KvStatsQuery(Message, tag="console.kv_stats.v1", frozen=True, kw_only=True):
    """Ask how it is, in full."""

    store: KvStoreId


class KvNamespace(Value, frozen=True, kw_only=True):
    """Values that may be read by the same engines."""

    namespace: str
    told: dict[str, str] = {}
    """What decides about their bytes: model, dtype, layout and so on, as an engine told it."""
    value_bytes: int
    values: int
    used_bytes: int
    engines: int = 0
    """Engines connected with it."""
    newest_s: float = 0.0
    """Age of the last use of the newest value."""
    oldest_s: float = 0.0


class KvStats(Message, tag="kvstore.stats.v1", frozen=True, kw_only=True):
    """The answer to `KvStatsQuery`."""

    beat: KvStoreHeartbeat
    namespaces: list[KvNamespace]


class KvListQuery(Message, tag="console.kv_list.v1", frozen=True, kw_only=True):
    """Ask which values are there: the longest unused first, in pages."""

    store: KvStoreId
    namespace: str
    offset: int = 0
    limit: int = 100


class KvValue(Value, frozen=True, kw_only=True):
    """One value."""

    key: bytes
    last_use_s: float
    """Age of its last use."""
    used_twice: bool
    mirrors: int
    """How many mirrors have it."""


class KvListing(Message, tag="kvstore.listing.v1", frozen=True, kw_only=True):
    """The answer to `KvListQuery`."""

    total: int
    values: list[KvValue]


class KvVerify(Message, tag="console.kv_verify.v1", frozen=True, kw_only=True):
    """Read all values on all mirrors and delete those that do not check out. Asked again it tells how far it is."""

    store: KvStoreId
    begin: bool = False
    """Begin where none runs; else only tell."""


class KvVerified(Message, tag="kvstore.verified.v1", frozen=True, kw_only=True):
    """The answer to `KvVerify`."""

    running: bool
    checked: int
    total: int
    bad: int
    seconds: float = 0.0


class KvPurge(Message, tag="console.kv_purge.v1", frozen=True, kw_only=True):
    """Delete values: those that fit all that is given; all, where nothing is."""

    store: KvStoreId
    namespace: str = ""
    service: str = ""
    older_than_s: float = 0.0
    """Only what was not used for so long."""


class KvPurged(Message, tag="kvstore.purged.v1", frozen=True, kw_only=True):
    """The answer to `KvPurge`."""

    values: int
    used_bytes: int
    away: int = 0
    """Mirrors that are out of service: what they have of it is deleted when they are back, unless the store restarts before."""
