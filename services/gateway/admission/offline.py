"""Finds offline work: many requests of one tenant that may take long. It is served in the batch class, whatever class it asks for."""

from __future__ import annotations

from collections import deque

from services.gateway.admission.verdict import AdmissionSettings
from shared.ids import TenantId

BUCKETS = 10
TENANTS_KEPT = 4096


class OfflineRule:
    """Counts, per tenant, the requests with a long delay allowance over a sliding window of ten buckets."""

    def __init__(self, settings: AdmissionSettings) -> None:
        self._settings = settings
        self._bucket_s = settings.offline_window_s / BUCKETS
        self._counts: dict[TenantId, deque[tuple[int, int]]] = {}

    def is_offline(self, tenant: TenantId, *, timeout_s: float | None, now: float) -> bool:
        """Count a request, and return whether it belongs to the batch class."""
        if timeout_s is None or timeout_s <= self._settings.offline_allowance_s:
            return False
        bucket = int(now / self._bucket_s)
        counts = self._counts.get(tenant)
        if counts is None:
            self._make_room(bucket)
            counts = self._counts[tenant] = deque()
        if counts and counts[-1][0] == bucket:
            counts[-1] = (bucket, counts[-1][1] + 1)
        else:
            counts.append((bucket, 1))
        while counts[0][0] <= bucket - BUCKETS:
            counts.popleft()
        return sum(count for _, count in counts) > self._settings.offline_requests

    def _make_room(self, bucket: int) -> None:
        if len(self._counts) < TENANTS_KEPT:
            return
        stale = [t for t, counts in self._counts.items() if counts[-1][0] <= bucket - BUCKETS]
        for tenant in stale or list(self._counts)[:1]:
            del self._counts[tenant]
