"""What the KV store of a host says of itself, and what the console may ask it. Loads and saves never cross the bus (decision 8)."""

from __future__ import annotations

from shared.ids import KvStoreId
from shared.messages.parts import Count, Figure, Message, Seconds, Short, Value


class MirrorPicture(Value, frozen=True, kw_only=True):
    """One mirror: a folder on a disk."""

    folder: str
    state: Short
    """`healthy`, `rebuilding` (serves, and gets what it lacks), `opening`, `ending`, `stuck` (waits for its disk, killed), `down`."""
    serves: bool
    read_only: bool = False
    """It reads and takes nothing: its disk is full or was made read-only."""
    trouble: Short = ""
    """Why it is not, or was last not, in order: `full`, `io`, `stalled`, `crashed`, `damaged`, `vanished`, `read_only`, `killed`."""
    reason: str = ""
    drops: Count = 0
    """Times it was taken out of service since the store's start."""
    drop_s: Seconds = 0.0
    """How long the last one took."""
    values: Count = 0
    file_bytes: Count = 0
    free_bytes: Count = 0
    """What its disk has left."""
    read_bytes_per_s: Figure = 0.0
    """Measured, smoothed; 0: not yet."""
    write_bytes_per_s: Figure = 0.0


class KvStoreHeartbeat(Message, tag="kvstore.heartbeat.v1", frozen=True, kw_only=True):
    """A store is alive: each 500 ms, and when a mirror comes or goes. Counts are since its start."""

    store: KvStoreId
    beat: Count
    host: Short = ""
    name: Short = ""
    mirrors: list[MirrorPicture] = []
    values: Count = 0
    used_bytes: Count = 0
    budget_bytes: Count = 0
    """What values may take on each disk."""
    hits: Count = 0
    """Values loaded."""
    misses: Count = 0
    """Values asked for and not loaded, whatever the reason."""
    saves: Count = 0
    """Values kept, or there already."""
    unsaved: Count = 0
    """Values that were to be kept and were not."""
    evicted: Count = 0
    corrupt: Count = 0
    """Values that did not check out, and were deleted."""
    loaded_bytes: Count = 0
    saved_bytes: Count = 0
    engines: Count = 0
    waiting_loads: Count = 0
    """Parts of loads that wait for a mirror."""
    waiting_saves: Count = 0
    url: str = ""
    """Its metrics page."""


class KvMirrorNews(Message, tag="kvstore.mirror.v1", frozen=True, kw_only=True):
    """A mirror was taken out of service, or is back: from the store, at once.

    No request is concerned: what it had is read elsewhere, or computed.
    """

    store: KvStoreId
    host: Short
    mirror: MirrorPicture
    unix_s: Seconds


class KvStatsQuery(Message, tag="console.kv_stats.v1", frozen=True, kw_only=True):
    """Ask how it is, in full."""

    store: KvStoreId


class KvNamespace(Value, frozen=True, kw_only=True):
    """Values that may be read by the same engines."""

    namespace: str
    told: dict[str, str] = {}
    """What decides about their bytes: model, dtype, layout and so on, as an engine told it."""
    value_bytes: Count
    values: Count
    used_bytes: Count
    engines: Count = 0
    """Engines connected with it."""
    newest_s: Seconds = 0.0
    """Age of the last use of the newest value."""
    oldest_s: Seconds = 0.0


class KvStats(Message, tag="kvstore.stats.v1", frozen=True, kw_only=True):
    """The answer to `KvStatsQuery`."""

    beat: KvStoreHeartbeat
    namespaces: list[KvNamespace]


class KvListQuery(Message, tag="console.kv_list.v1", frozen=True, kw_only=True):
    """Ask which values are there: the longest unused first, in pages."""

    store: KvStoreId
    namespace: str
    offset: Count = 0
    limit: Count = 100


class KvValue(Value, frozen=True, kw_only=True):
    """One value."""

    key: bytes
    last_use_s: Seconds
    """Age of its last use."""
    used_twice: bool
    mirrors: Count
    """How many mirrors have it."""


class KvListing(Message, tag="kvstore.listing.v1", frozen=True, kw_only=True):
    """The answer to `KvListQuery`."""

    total: Count
    values: list[KvValue]


class KvVerify(Message, tag="console.kv_verify.v1", frozen=True, kw_only=True):
    """Read all values on all mirrors and delete those that do not check out. Asked again it tells how far it is."""

    store: KvStoreId
    begin: bool = False
    """Begin where none runs; else only tell."""


class KvVerified(Message, tag="kvstore.verified.v1", frozen=True, kw_only=True):
    """The answer to `KvVerify`."""

    running: bool
    checked: Count
    total: Count
    bad: Count
    seconds: Seconds = 0.0


class KvPurge(Message, tag="console.kv_purge.v1", frozen=True, kw_only=True):
    """Delete values: those that fit all that is given; all, where nothing is."""

    store: KvStoreId
    namespace: str = ""
    service: str = ""
    older_than_s: Seconds = 0.0
    """Only what was not used for so long."""


class KvPurged(Message, tag="kvstore.purged.v1", frozen=True, kw_only=True):
    """The answer to `KvPurge`."""

    values: Count
    used_bytes: Count
    away: Count = 0
    """Mirrors that are out of service: what they have of it is deleted when they are back, unless the store restarts before."""
