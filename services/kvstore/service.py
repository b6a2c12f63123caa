"""The store on the bus: heartbeats, news of mirrors, answers to the console. The store itself goes on without it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from typing_extensions import override

from services.kvstore import picture
from services.kvstore.settings import KvStoreSettings
from services.kvstore.store import Store
from services.kvstore.upkeep import Upkeep
from shared import logs
from shared.bus import Bus, Subscription
from shared.clock import wall_time_s
from shared.errors import BusError
from shared.ids import KvStoreId
from shared.messages import (
    HEARTBEAT_S,
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

EVERYWHERE = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared, not bound


class KvStoreService:
    """What a store says and answers on one bus."""

    def __init__(
        self,
        settings: KvStoreSettings,
        store: Store,
        upkeep: Upkeep,
        *,
        me: KvStoreId,
        host: str,
    ) -> None:
        self._settings = settings
        self._store = store
        self._upkeep = upkeep
        self._me = me
        self._host = host
        self._beat = 0
        self._served = [mirror.serves for mirror in store.mirrors]
        self._log = logs.get("kvstore")

    @override
    def __repr__(self) -> str:
        return f"<KvStoreService {self._me} {self._store}>"

    async def run(self, bus: Bus) -> None:
        """Tell and answer until cancelled."""
        me = self._me
        async with AsyncExitStack() as stack:
            subscriptions: list[Subscription] = [
                await bus.serve(KvStatsQuery, self._on_stats, max_pending=8, store=me),
                await bus.serve(KvListQuery, self._on_list, max_pending=8, store=me),
                await bus.serve(KvVerify, self._on_verify, max_pending=8, store=me),
                await bus.serve(KvPurge, self._on_purge, max_pending=8, store=me),
            ]
            for subscription in subscriptions:
                stack.push_async_callback(subscription.close)
            await self._beat_forever(bus)

    async def _beat_forever(self, bus: Bus) -> None:
        while True:
            self._store.changed.clear()
            self._tell_news(bus)
            self._publish(bus, self.heartbeat())
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._store.changed.wait()
            except TimeoutError:
                continue

    def _tell_news(self, bus: Bus) -> None:
        """Tell of each mirror that has begun or ceased to serve since the last time."""
        for number, mirror in enumerate(self._store.mirrors):
            if mirror.serves is self._served[number]:
                continue
            self._served[number] = mirror.serves
            news = KvMirrorNews(
                store=self._me,
                host=self._host,
                mirror=picture.mirror_picture(self._store, mirror),
                unix_s=wall_time_s(),
            )
            self._publish(bus, news)

    def _publish(self, bus: Bus, message: KvMirrorNews | KvStoreHeartbeat) -> None:
        try:
            bus.publish(message)
        except BusError as error:
            self._log.warning("bus_unsent", reason=str(error))

    def heartbeat(self) -> KvStoreHeartbeat:
        """Return how the store is, as others see it."""
        settings = self._settings
        self._beat += 1
        host = "127.0.0.1" if settings.metrics_host in EVERYWHERE else settings.metrics_host
        port = settings.metrics_port
        return picture.heartbeat(
            self._store,
            me=self._me,
            beat=self._beat,
            host=self._host,
            name=settings.name,
            url=f"http://{host}:{port}/metrics" if port else "",
        )

    async def _on_stats(self, _: KvStatsQuery) -> KvStats:
        found = picture.namespaces(self._store, now=wall_time_s())
        return KvStats(beat=self.heartbeat(), namespaces=found)

    async def _on_list(self, query: KvListQuery) -> KvListing:
        return picture.listing(self._store, query, now=wall_time_s())

    async def _on_verify(self, query: KvVerify) -> KvVerified:
        return self._upkeep.verify(begin=query.begin)

    async def _on_purge(self, query: KvPurge) -> KvPurged:
        purged = self._upkeep.purge(query)
        self._log.warning("purged", values=purged.values, bytes=purged.used_bytes)
        return purged
