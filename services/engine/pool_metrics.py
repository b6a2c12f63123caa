"""The KV pool's figures for Prometheus: size, free blocks, how scattered they are. What a backend does not tell has no value at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from services.engine.metrics import PREFIX
from services.engine.ports import Limits, Load


class PoolMetrics(Collector):
    """Reads limits and load when the page is made. No limits: the backend has not started."""

    def __init__(self, limits: Callable[[], Limits | None], load: Callable[[], Load]) -> None:
        self._limits = limits
        self._load = load

    @override
    def collect(self) -> Iterator[Metric]:
        limits, load = self._limits(), self._load()
        sizes = (
            (limits.total_blocks, limits.block_tokens, limits.block_bytes) if limits else (0, 0, 0)
        )
        # A backend that does not tell says 0.
        total_blocks, block_tokens, block_bytes = (size or None for size in sizes)
        free_blocks = None if total_blocks is None else load.free_blocks
        for name, text, value in (
            ("total_blocks", "Blocks of the KV pool.", total_blocks),
            ("free_blocks", "Blocks of the KV pool that nobody uses.", free_blocks),
            ("block_tokens", "Tokens in a block.", block_tokens),
            ("block_bytes", "Bytes of a block over all layers.", block_bytes),
            (
                "promised_blocks",
                "Free blocks that running requests may still come to need.",
                load.promised_blocks,
            ),
            (
                "reserved_blocks",
                "Free blocks, promised to nobody, that only short requests or the interactive class may have.",
                load.reserved_blocks,
            ),
            (
                "waiting_for_blocks",
                "Choices that wait for blocks of the KV pool, not for their turn.",
                None if load.promised_blocks is None else load.blocked,
            ),
            ("free_runs", "Runs of adjacent free blocks.", load.free_runs),
            ("largest_free_run", "Blocks of the longest of them.", load.largest_free_run),
            (
                "fragmentation_ratio",
                "1 - largest run of adjacent free blocks / free blocks.",
                fragmentation(load),
            ),
        ):
            family = GaugeMetricFamily(PREFIX + name, text)
            if value is not None:
                family.add_metric((), value)
            yield family


def fragmentation(load: Load) -> float | None:
    """Return how scattered the free blocks are, from 0 (one run) towards 1; none where it is not known."""
    if load.largest_free_run is None:
        return None
    # Free blocks were counted a little after or before the runs were.
    free = max(load.free_blocks, load.largest_free_run)
    return 1.0 - load.largest_free_run / free if free else 0.0
