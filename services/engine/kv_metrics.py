"""The KV tiers' figures for Prometheus: which tier cached tokens came from, what moved between them, how the store stands."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from services.engine.metrics import PREFIX
from services.engine.step_counts import StepCounts


class KvMetrics(Collector):
    """Reads the counters when the page is made."""

    def __init__(self, steps: StepCounts) -> None:
        self._steps = steps

    @override
    def collect(self) -> Iterator[Metric]:
        steps, kv = self._steps, self._steps.kv
        tokens = CounterMetricFamily(
            PREFIX + "tier_tokens",
            "Prompt tokens that were there already, by the tier their KV blocks came from.",
            labels=["tier"],
        )
        tokens.add_metric(["l1"], steps.cached_tokens - steps.host_tokens - steps.disk_tokens)
        tokens.add_metric(["l2"], steps.host_tokens)
        tokens.add_metric(["l3"], steps.disk_tokens)
        moved = CounterMetricFamily(
            PREFIX + "kv_moved_bytes",
            "Bytes of KV blocks copied from one tier to another.",
            labels=["source", "target"],
        )
        for source, target, size in (
            ("l1", "l2", kv.to_host),
            ("l2", "l1", kv.from_host),
            ("l2", "l3", kv.to_disk),
            ("l3", "l2", kv.from_disk),
        ):
            moved.add_metric([source, target], size)
        yield from (tokens, moved)
        for name, text, value in (
            ("kv_failed_bytes", "Bytes that should have come from disk, and did not.", kv.failed),
            (
                "kv_dropped_bytes",
                "Bytes not saved to disk, since too much was waiting.",
                kv.dropped,
            ),
            ("kv_given_up_loads", "Loads from disk that took too long.", kv.given_up),
        ):
            yield CounterMetricFamily(PREFIX + name, text, value)
        for name, text, value in (
            (
                "kv_aside_bytes",
                "Host memory that nobody may use, since the store may still write there.",
                kv.aside,
            ),
            ("kv_store_up", "1 while a KV store is connected.", int(kv.disk_blocks >= 0)),
            ("kv_disk_blocks", "Blocks that can be loaded from disk.", max(0, kv.disk_blocks)),
        ):
            yield GaugeMetricFamily(PREFIX + name, text, value)
