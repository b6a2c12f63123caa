"""vLLM's `TieringOffloadingSpec` with our parts: slots that can be kept aside, a data mover for the CPU platform, a file without a name.

vLLM makes one in the scheduler's process, for its manager, and one in each worker, for its mover.
CUDA keeps vLLM's mover and its pinned memory.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from typing_extensions import override
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from services.engine.adapters import kv_region
from services.engine.adapters.kv_mover import HostMover
from services.engine.adapters.kv_primary import HostTier, Tiers
from shared import logs

NAME = "HeadraceTiersSpec"
MODULE = __name__

_log = logs.get("vllm")


class HeadraceTiersSpec(TieringOffloadingSpec):
    """Used by its name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tiers: Tiers | None = None
        self._mover: OffloadingWorker | None = None

    @override
    def get_manager(self) -> Tiers:
        if self._tiers is None:
            for name in kv_region.remove_stale():
                _log.info("kv_region_removed", name=name)
            with ExitStack() as undo:
                self._tiers = self._make_manager(undo)
                undo.pop_all()
        return self._tiers

    def _make_manager(self, undo: ExitStack) -> Tiers:
        region = self._region(rank=None)
        undo.callback(region.cleanup)
        kv_region.hold_last(region)
        self._scheduler_mmap = region
        host = HostTier(
            num_chunks=self.num_chunks,
            mmap_region=region,
            cache_policy=self.eviction_policy,
            cache_policy_module_path=self.cache_policy_module_path,
            enable_events=self.kv_events_config.enable_kv_cache_events,
        )
        undo.pop_all()
        undo.callback(host.shutdown)
        lower = []
        for config in self.secondary_tier_configs:
            tier = SecondaryTierFactory.create_secondary_tier(
                config, host.get_kv_memoryview(), self
            )
            undo.callback(tier.shutdown)
            if (attach := getattr(tier, "attach", None)) is not None:
                attach(host, region.fd)
            lower.append(tier)
        return Tiers(primary_tier=host, secondary_tiers=lower)

    @override
    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if current_platform.is_cuda_alike() or current_platform.is_xpu():
            worker = super().get_worker(kv_caches)
            kv_region.hold(worker._mmap_region)  # noqa: SLF001 - of vLLM's mover
            return worker
        if self._mover is None:
            # Where all workers hold the same bytes, one of them writes, and all read its part.
            region = self._region(rank=0 if self.replicated_layout else self.config.parallel.rank)
            kv_region.hold(region)
            self._mover = HostMover(kv_caches, self.blocks_per_chunk, region)
        return self._mover

    def _region(self, *, rank: int | None) -> SharedOffloadRegion:
        if not self.num_chunks:
            raise ValueError(
                f"kv.host_bytes is too small for one block of {self.kv_bytes_per_chunk} bytes"
            )
        return SharedOffloadRegion(
            engine_id=self._engine_id,
            num_chunks=self.num_chunks,
            rank=rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
