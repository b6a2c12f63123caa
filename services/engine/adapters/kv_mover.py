"""Copies KV blocks between the pool and the slots of L2 where vLLM has no mover of its own: on the CPU platform.

One thread, one gather or scatter a layer: a copy for each block would contend with the engine's loop for the interpreter's lock
(4 s instead of 0.1 s for 7,000 tokens). numpy rather than torch, whose copies would wake a second team of OpenMP threads.

A copy that fails is told as failed, and costs a recompute: see `kv_connector`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from typing_extensions import override
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

from shared import logs

WAIT_S = 60.0
"""How long vLLM may wait for copies whose blocks it wants; they take milliseconds."""

_log = logs.get("vllm")
Bytes = npt.NDArray[np.int8]
Places = npt.NDArray[np.int64]


class Copying(NamedTuple):
    """A copy to make."""

    job: int
    pool: GPULoadStoreSpec
    host: BlockIDsLoadStoreSpec
    to_host: bool


class HostMover(OffloadingWorker):
    """Implements vLLM's worker of one medium."""

    def __init__(
        self, kv_caches: CanonicalKVCaches, blocks_per_chunk: int, region: SharedOffloadRegion
    ) -> None:
        self._per_slot = blocks_per_chunk
        self._region: SharedOffloadRegion | None = region
        self._refs = kv_caches.group_data_refs
        self._pool = [_rows(each.tensor, each.page_size_bytes) for each in kv_caches.tensors]
        self._slots = [
            region.create_next_worker_view(each.page_size_bytes * blocks_per_chunk).numpy()
            for each in kv_caches.tensors
        ]
        self._failed_blocks: set[int] = set()
        self._failed_jobs: set[int] = set()
        self._todo: queue.SimpleQueue[Copying | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[TransferResult] = queue.SimpleQueue()
        self._pending: set[int] = set()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True, name="kv mover")
        self._thread.start()

    # --- what vLLM calls

    @override
    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        return self._submit(job_id, src_spec, dst_spec, to_host=True)

    @override
    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        return self._submit(job_id, dst_spec, src_spec, to_host=False)

    @override
    def get_finished(self) -> list[TransferResult]:
        finished = []
        while True:
            try:
                finished.append(self._done.get_nowait())
            except queue.Empty:
                return finished

    @override
    def wait(self, job_ids: set[int]) -> None:
        """Return once these copies have been made. Raises `TimeoutError`: their blocks cannot be given to others."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._pending & job_ids, WAIT_S):
                raise TimeoutError(f"copies of KV blocks took more than {WAIT_S:g} s")

    @override
    def shutdown(self) -> None:
        """End the thread, after the copies that were asked for. A second call changes nothing."""
        self._todo.put(None)
        self._thread.join(WAIT_S)
        self._pool.clear()
        self._slots.clear()
        region, self._region = self._region, None
        if region is not None:
            region.cleanup()

    # --- what vLLM has no question for

    def take_failed_blocks(self) -> set[int]:
        """Return the blocks of the pool that loads did not fill, each once: at the latest with the load's end."""
        with self._changed:
            failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def take_failed_jobs(self, ended: Collection[int]) -> set[int]:
        """Return which of the copies that have ended failed on their way into L2, each once."""
        with self._changed:
            failed = self._failed_jobs.intersection(ended)
            self._failed_jobs -= failed
        return failed

    # --- copies

    def _submit(
        self, job: int, pool: GPULoadStoreSpec, host: LoadStoreSpec, *, to_host: bool
    ) -> bool:
        assert isinstance(host, BlockIDsLoadStoreSpec)
        with self._changed:
            self._pending.add(job)
        self._todo.put(Copying(job, pool, host, to_host))
        return True

    def _run(self) -> None:
        while (copying := self._todo.get()) is not None:
            began = time.monotonic()
            size = 0
            try:
                size = self._copy(copying)
            except Exception as error:  # noqa: BLE001 - whatever it is, the blocks are not there and nothing else is wrong
                _log.error("kv_copy_failed", job=copying.job, exc_info=error)
                self._note_failure(copying)
            # vLLM asserts success; what failed is told beside it.
            self._done.put(TransferResult(copying.job, True, size, time.monotonic() - began))
            with self._changed:
                self._pending.discard(copying.job)
                self._changed.notify_all()

    def _note_failure(self, copying: Copying) -> None:
        with self._changed:
            if copying.to_host:
                self._failed_jobs.add(copying.job)
            else:
                self._failed_blocks.update(copying.pool.block_ids.tolist())

    def _copy(self, copying: Copying) -> int:
        """Copy; return the bytes."""
        pool_at = host_at = size = 0
        pool, host = copying.pool, copying.host.block_ids
        for group, (blocks, first) in enumerate(
            zip(pool.group_sizes, pool.block_indices, strict=True)
        ):
            if not blocks:
                continue
            skipped = first % self._per_slot
            slots = -(-(blocks + skipped) // self._per_slot)
            places = np.arange(skipped, skipped + blocks)
            size += self._copy_group(
                group,
                pool.block_ids[pool_at : pool_at + blocks].astype(np.int64),
                host[host_at : host_at + slots].astype(np.int64)[places // self._per_slot],
                places % self._per_slot,
                to_host=copying.to_host,
            )
            pool_at += blocks
            host_at += slots
        return size

    def _copy_group(
        self, group: int, blocks: Places, slots: Places, within: Places, *, to_host: bool
    ) -> int:
        size = 0
        for ref in self._refs[group]:
            pool, page = self._pool[ref.tensor_idx], ref.page_size_bytes
            for part, rows in self._parts(ref.tensor_idx, within):
                host = part[:, :page]
                if to_host:
                    host[slots[rows]] = pool[blocks[rows], :page]
                else:
                    pool[blocks[rows], :page] = host[slots[rows]]
            size += page * len(blocks)
        return size

    def _parts(self, tensor: int, within: Places) -> Sequence[tuple[Bytes, Places | slice]]:
        """Return the columns of the slots that a copy touches, and which of its blocks lie in each."""
        host = self._slots[tensor]
        if self._per_slot == 1:
            return [(host, slice(None))]
        width = host.shape[1] // self._per_slot
        return [
            (host[:, place * width : (place + 1) * width], np.flatnonzero(within == place))
            for place in range(self._per_slot)
        ]


def _rows(tensor: torch.Tensor, page: int) -> Bytes:
    """Return a pool's blocks as rows of bytes, in the pool's own memory."""
    rows = tensor.view(torch.int8).as_strided(
        (tensor.shape[0], page), (tensor.stride(0) * tensor.element_size(), 1)
    )
    made: Bytes = rows.numpy()
    return made
