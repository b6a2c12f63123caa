"""Samples of what a KV store says and is asked; see `golden_samples`."""

from __future__ import annotations

from shared.ids import KvStoreId
from shared.messages import (
    KvListing,
    KvListQuery,
    KvMirrorNews,
    KvNamespace,
    KvPurge,
    KvPurged,
    KvStats,
    KvStatsQuery,
    KvStoreHeartbeat,
    KvValue,
    KvVerified,
    KvVerify,
    Message,
    MirrorPicture,
)

STORE = KvStoreId("k0123456789abcdef")
SPACE = "045ee166f6a5f8b8417b9b587edf79d4"
KEY = bytes(range(32)) + b"\0\0\0\1"
HEALTHY = MirrorPicture(
    folder="/disk1/kv",
    state="healthy",
    serves=True,
    values=1_000,
    file_bytes=740_000_000,
    free_bytes=90_000_000_000,
    read_bytes_per_s=2.5e9,
    write_bytes_per_s=1.5e9,
)
DROPPED = MirrorPicture(
    folder="/disk2/kv",
    state="ending",
    serves=False,
    read_only=True,
    trouble="stalled",
    reason="no answer to a read in 1.0 s",
    drops=3,
    drop_s=0.004,
)
BEAT = KvStoreHeartbeat(
    store=STORE,
    beat=7,
    host="node-1",
    name="kvstore",
    mirrors=[HEALTHY, DROPPED],
    values=1_000,
    used_bytes=741_376_000,
    budget_bytes=20 << 30,
    hits=500,
    misses=20,
    saves=1_200,
    unsaved=3,
    evicted=200,
    corrupt=1,
    loaded_bytes=368_640_000,
    saved_bytes=884_736_000,
    engines=2,
    waiting_loads=1,
    waiting_saves=4,
    url="http://127.0.0.1:9104/metrics",
)

KVSTORE_SAMPLES: dict[str, Message] = {
    "kv_store_heartbeat": BEAT,
    "kv_mirror_news": KvMirrorNews(
        store=STORE, host="node-1", mirror=DROPPED, unix_s=1_796_000_004.5
    ),
    "kv_stats_query": KvStatsQuery(store=STORE),
    "kv_stats": KvStats(
        beat=BEAT,
        namespaces=[
            KvNamespace(
                namespace=SPACE,
                told={"model": "smollm2", "dtype": "float32"},
                value_bytes=737_280,
                values=1_000,
                used_bytes=741_376_000,
                engines=2,
                newest_s=0.5,
                oldest_s=86_400.0,
            )
        ],
    ),
    "kv_list_query": KvListQuery(store=STORE, namespace=SPACE, offset=100, limit=50),
    "kv_listing": KvListing(
        total=1_000, values=[KvValue(key=KEY, last_use_s=12.5, used_twice=True, mirrors=2)]
    ),
    "kv_verify": KvVerify(store=STORE, begin=True),
    "kv_verified": KvVerified(running=True, checked=400, total=2_000, bad=1, seconds=3.5),
    "kv_purge": KvPurge(store=STORE, namespace=SPACE, service="smollm2", older_than_s=604_800.0),
    "kv_purged": KvPurged(values=12, used_bytes=8_896_512, away=1),
}
