"""The KV tiers of an engine without an engine: vLLM's own manager and file in memory, our mover, driven as vLLM's scheduler does."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
    LookupResult,
    ReqContext,
    ScheduleEndContext,
    make_offload_key,
)
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)

from services.engine.adapters import kv_config, kv_region
from services.engine.adapters.kv_mover import HostMover
from services.engine.adapters.kv_spec import HeadraceTiersSpec
from services.engine.adapters.kv_tier import StoreTier
from services.engine.settings import KvSettings
from tests.support.kv_store_process import KvStoreProcess
from tests.support.memory_store import MemoryStore

BLOCK_TOKENS = 16
LAYERS = 3
PAGE = 4096
"""Bytes of a block in one layer."""
VALUE = LAYERS * PAGE
POOL = 32
"""Blocks of the pool."""
PATIENT_S = 10.0
SLOTS = 8
LOAD_S = 0.2


def weights(folder: Path, content: bytes = b"weights") -> Path:
    """Write what counts as a model's files."""
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(content)
    (folder / "config.json").write_bytes(b"{}")
    return folder


def config_of(model: Path, kv: KvSettings, **changes: Any) -> OffloadingConfig:
    """Return the configuration that vLLM would make for one group of layers."""
    made = kv_config.transfer_args(kv)["kv_transfer_config"]
    extra = made["kv_connector_extra_config"]
    for tier in extra.get("secondary_tiers", ()):
        tier["told"] = {"vllm": "test"}
    group = OffloadingGroupConfig(BLOCK_TOKENS, tuple(f"layer{each}" for each in range(LAYERS)), 0)
    parallel = dict.fromkeys(("world_size", "tp_size", "pp_size", "pcp_size", "dcp_size"), 1)
    fields: dict[str, Any] = {
        "groups": (group,),
        "worker_kv_bytes_per_block": VALUE,
        "enable_kv_cache_events": False,
        "extra_config": extra,
        "engine_id": made["engine_id"],
        "model": OffloadingModelConfig(str(model), "float32"),
        "cache": OffloadingCacheConfig(BLOCK_TOKENS, 1),
        "parallel": OffloadingParallelConfig(
            rank=0,
            data_parallel_index=0,
            data_parallel_size=1,
            data_parallel_rank_local=None,
            is_parallelism_agnostic=False,
            **parallel,
        ),
        "kv_cache_layout": "LBHNC",
    }
    return OffloadingConfig(**(fields | changes))


def pool_of(blocks: int = POOL) -> CanonicalKVCaches:
    """Return a pool whose layers lie one after the other, as on the CPU platform."""
    tensors = [
        CanonicalKVCacheTensor(torch.zeros((blocks, PAGE), dtype=torch.int8), PAGE)
        for _ in range(LAYERS)
    ]
    return CanonicalKVCaches(tensors, [[CanonicalKVCacheRef(each, PAGE) for each in range(LAYERS)]])


def blocks(*ids: int) -> GPULoadStoreSpec:
    """Return some blocks of the pool."""
    return GPULoadStoreSpec(list(ids), group_sizes=[len(ids)], block_indices=[0])


class KvRig:
    """One engine's tiers."""

    def __init__(self, model: Path, kv: KvSettings, **changes: Any) -> None:
        self.spec = HeadraceTiersSpec(config_of(model, kv, **changes))
        self.pool = pool_of()
        worker = self.spec.get_worker(self.pool)
        assert isinstance(worker, HostMover)
        self.mover = worker
        self.manager = self.spec.get_manager()
        self._copies = itertools.count()
        self._names = itertools.count()

    @property
    def tier(self) -> StoreTier:
        (tier,) = self.manager.secondary_tiers
        assert isinstance(tier, StoreTier)
        return tier

    def connected(self) -> KvRig:
        """Return this rig once it has a connection."""
        self.until(lambda: self.tier._client is not None)
        return self

    def until(self, is_so: Callable[[], bool]) -> None:
        """Make steps until something is so."""
        ends_at = time.monotonic() + PATIENT_S
        while not is_so():
            assert time.monotonic() < ends_at, f"not so after {PATIENT_S:g} s: {self.tier!r}"
            self.step()
            time.sleep(0.002)

    def step(self) -> None:
        """End a step."""
        self.manager.on_schedule_end(ScheduleEndContext((), ()))

    # --- requests

    def begin(self, *hashes: str, tokens: int | None = None) -> Asked:
        """Begin a request whose prompt has these blocks."""
        context = ReqContext(f"r{next(self._names)}")
        names = [each.encode().ljust(32) for each in hashes]
        self.manager.expect(context.req_id, tokens or len(names) * BLOCK_TOKENS, names)
        self.manager.on_new_request(context)
        keys = [make_offload_key(each, 0) for each in names]
        for place, key in enumerate(keys):
            context.set_offload_key_position(key, (place + 1) * BLOCK_TOKENS)
        return Asked(context, keys)

    def finish(self, asked: Asked) -> None:
        """End a request."""
        self.manager.on_request_finished(asked.context)

    def lookup(self, asked: Asked) -> list[LookupResult]:
        """Ask for each block in turn, up to the first that is not there."""
        found = []
        for key in asked.keys:
            found.append(self.manager.lookup(key, asked.context))
            if found[-1] is LookupResult.MISS:
                break
        return found

    def look_until_known(self, asked: Asked) -> int:
        """Ask in each step until nothing is pending; return how many blocks are there."""
        found: list[LookupResult] = []

        def is_known() -> bool:
            found[:] = self.lookup(asked)
            return LookupResult.HIT_PENDING not in found and LookupResult.RETRY not in found

        self.until(is_known)
        return found.count(LookupResult.HIT)

    def store(self, asked: Asked, *ids: int) -> bool:
        """Copy the request's blocks from these of the pool into L2; what is to go further goes."""
        prepared = self.manager.prepare_store(asked.keys, asked.context)
        if prepared is None:
            return False
        if prepared.keys_to_store:
            places = [asked.keys.index(key) for key in prepared.keys_to_store]
            job = next(self._copies)
            self.mover.submit_store(
                job, blocks(*(ids[each] for each in places)), prepared.store_spec
            )
            self.mover.wait({job})
            if self.mover.take_failed_jobs({job}):
                self.manager.unwritten(prepared.keys_to_store)
            self.manager.complete_store(prepared.keys_to_store, asked.context)
        return True

    def load(self, asked: Asked, *ids: int) -> None:
        """Copy the request's blocks from L2 into these of the pool."""
        keys = asked.keys[: len(ids)]
        source = self.manager.prepare_load(keys, asked.context)
        job = next(self._copies)
        self.mover.submit_load(job, source, blocks(*ids))
        self.mover.wait({job})
        self.manager.complete_load(keys, asked.context)

    # --- bytes

    def write(self, block: int, value: int) -> None:
        """Fill a block of the pool, each layer with bytes of its own."""
        for layer, each in enumerate(self.pool.tensors):
            each.tensor[block] = value + layer

    def read(self, block: int) -> set[tuple[int, ...]]:
        """Return what a block of the pool holds: one tuple of layers' bytes where it is as `write` left it."""
        rows = np.stack([each.tensor[block].numpy() for each in self.pool.tensors])
        return {tuple(int(each) for each in column) for column in np.unique(rows, axis=1).T}

    def close(self) -> None:
        """End."""
        self.manager.shutdown()
        self.mover.shutdown()


class Asked(msgspec.Struct):
    """A request under way."""

    context: Any
    keys: list[Any]


@contextmanager
def kv_rig(model: Path, kv: KvSettings, **changes: Any) -> Iterator[KvRig]:
    """Yield the tiers; nothing of them is left afterwards."""
    rig = KvRig(model, kv, **changes)
    try:
        yield rig
    finally:
        rig.close()


def wholly(value: int) -> set[tuple[int, ...]]:
    """Return what `KvRig.read` returns of a block that was filled with this."""
    return {tuple(value + layer for layer in range(LAYERS))}


def names_in_memory() -> list[str]:
    """Return the files that engines have left or have under way."""
    return [path.name for path in kv_region.FOLDER.glob("vllm_offload_headrace-*")]


def settings(store: MemoryStore | KvStoreProcess | None = None, **changes) -> KvSettings:
    made = {
        "host_bytes": SLOTS * VALUE,
        "store": "" if store is None else str(store.path),
        "min_tokens": 0,
        "load_s": LOAD_S,
        "drain_s": 0.2,
        "load_share": 1.0,
        "save_share": 1.0,
    }
    return KvSettings(**(made | changes))


def saved(rig: KvRig, store: MemoryStore, *names: str) -> None:
    """Have an engine compute blocks and save them; the first holds 10, the second 20 and so on."""
    asked = rig.begin(*names)
    for place in range(len(names)):
        rig.write(place, 10 * (place + 1))
    assert rig.store(asked, *range(len(names)))
    rig.until(lambda: rig.tier.jobs.is_idle and not rig.manager.has_pending_work())
    rig.finish(asked)
    assert set(asked.keys) <= set().union(*store.values.values())


def emptied(rig: KvRig) -> None:
    """Have L2 forget what it holds, as a restart would."""
    rig.manager.reset_cache()
    rig.until(lambda: bool(rig.tier._keys))
