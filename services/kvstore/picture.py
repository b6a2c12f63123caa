"""What a store tells about itself on the bus and answers to the console. Reads the store, changes nothing."""

from __future__ import annotations

import heapq

from services.kvstore.fairness import Kind
from services.kvstore.index import Entry
from services.kvstore.mirror import Mirror
from services.kvstore.store import Store
from shared.ids import KvStoreId
from shared.messages import (
    KvListing,
    KvListQuery,
    KvNamespace,
    KvStoreHeartbeat,
    KvValue,
    MirrorPicture,
)

MAX_LISTED = 1000
MAX_NAMESPACES = 200


def mirror_picture(store: Store, mirror: Mirror) -> MirrorPicture:
    """Return how a mirror is."""
    return MirrorPicture(
        folder=mirror.folder,
        state=mirror.state.value,
        serves=mirror.serves,
        read_only=mirror.read_only and mirror.serves,
        trouble=mirror.trouble.value,
        reason=mirror.reason,
        drops=mirror.drops,
        drop_s=mirror.drop_s,
        values=store.catalogue.count_of(mirror.number),
        file_bytes=sum(mirror.sizes.file_bytes.values()),
        free_bytes=mirror.sizes.free_bytes,
        read_bytes_per_s=mirror.read.bytes_per_s,
        write_bytes_per_s=mirror.written.bytes_per_s,
    )


def heartbeat(
    store: Store, *, me: KvStoreId, beat: int, host: str, name: str, url: str
) -> KvStoreHeartbeat:
    """Return how the store is, as others see it."""
    counts, index = store.counts, store.catalogue.index
    return KvStoreHeartbeat(
        store=me,
        beat=beat,
        host=host,
        name=name,
        mirrors=[mirror_picture(store, mirror) for mirror in store.mirrors],
        values=len(index),
        used_bytes=index.used_bytes,
        budget_bytes=index.budget_bytes,
        hits=counts.values[Kind.LOAD],
        misses=counts.missing[Kind.LOAD],
        saves=counts.values[Kind.SAVE],
        unsaved=counts.missing[Kind.SAVE],
        evicted=counts.evicted,
        corrupt=counts.corrupt,
        loaded_bytes=counts.bytes[Kind.LOAD],
        saved_bytes=counts.bytes[Kind.SAVE],
        engines=len(store.sessions.all),
        waiting_loads=store.queue.waiting(Kind.LOAD),
        waiting_saves=store.queue.waiting(Kind.SAVE),
        url=url,
    )


def namespaces(store: Store, *, now: float) -> list[KvNamespace]:
    """Return the namespaces, the largest first."""
    found = []
    for space in store.catalogue.index.spaces():
        entries = store.catalogue.index.entries(space)
        facts = store.catalogue.facts[space]
        found.append(
            KvNamespace(
                namespace=space,
                told=facts.told,
                value_bytes=facts.value_bytes,
                values=len(entries),
                used_bytes=sum(entry.charged for entry in entries),
                engines=len(store.sessions.of_space(space)),
                newest_s=max(0.0, now - max(entry.last for entry in entries)),
                oldest_s=max(0.0, now - min(entry.last for entry in entries)),
            )
        )
    return sorted(found, key=lambda n: -n.used_bytes)[:MAX_NAMESPACES]


def listing(store: Store, query: KvListQuery, *, now: float) -> KvListing:
    """Return one page of a namespace, the longest unused first."""
    entries = store.catalogue.index.entries(query.namespace)
    limit = max(0, min(query.limit, MAX_LISTED))
    offset = max(0, query.offset)
    first = heapq.nsmallest(offset + limit, entries, key=lambda entry: (entry.last, entry.key))
    return KvListing(total=len(entries), values=[_value(entry, now) for entry in first[offset:]])


def _value(entry: Entry, now: float) -> KvValue:
    return KvValue(
        key=entry.key,
        last_use_s=max(0.0, now - entry.last),
        used_twice=bool(entry.prior),
        mirrors=entry.mirrors.bit_count(),
    )
