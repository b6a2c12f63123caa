"""Parts of an engine's KV tiers by themselves: what is copied where, what a model's files are known by, what is left in memory."""

from __future__ import annotations

import fcntl
import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.engine.ports import EngineFailedError
from services.engine.settings import KvSettings
from shared.kv.namespace import digest
from tests.support.vllm_rig import imported_vllm

imported_vllm()

import torch  # noqa: E402 - after the switches that vLLM reads when it is imported
from vllm.v1.kv_offload.base import (  # noqa: E402
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec  # noqa: E402
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion  # noqa: E402

from services.engine.adapters import kv_config, kv_region  # noqa: E402
from services.engine.adapters.kv_connector import CopyNews  # noqa: E402
from services.engine.adapters.kv_mover import HostMover  # noqa: E402
from services.engine.adapters.kv_namespace import fields_of  # noqa: E402
from services.engine.adapters.kv_spec import HeadraceTiersSpec  # noqa: E402
from shared.models.fingerprint import PIECE, fingerprint  # noqa: E402
from tests.support.kv_tiers_rig import config_of, weights  # noqa: E402

# --- copies


class Shape:
    """A pool of several groups of layers, some of them over each other, and slots of several blocks."""

    PAGES = (512, 256, 1024)
    GROUPS = ((0, 1), (2,))
    BLOCKS, SLOTS = 40, 12

    def __init__(self, per_slot: int) -> None:
        self.per_slot = per_slot
        self.tensors = [
            torch.randint(-128, 127, (self.BLOCKS, page), dtype=torch.int8) for page in self.PAGES
        ]
        caches = CanonicalKVCaches(
            [CanonicalKVCacheTensor(each, each.shape[1]) for each in self.tensors],
            [[CanonicalKVCacheRef(at, self.PAGES[at]) for at in group] for group in self.GROUPS],
        )
        page = sum(self.PAGES) * per_slot
        region = SharedOffloadRegion(
            engine_id=kv_region.new_engine_id(),
            num_chunks=self.SLOTS,
            rank=0,
            kv_bytes_per_chunk=-(-page // 4096) * 4096,
            cpu_page_size=page,
        )
        Path(region.mmap_path).unlink()
        kv_region.hold(region)
        self.mover = HostMover(caches, per_slot, region)


@pytest.fixture(scope="module")
def shapes():
    made = {per_slot: Shape(per_slot) for per_slot in (1, 2, 3)}
    yield made
    for shape in made.values():
        shape.mover.shutdown()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_goes_out_comes_back_where_it_is_wanted_and_nothing_else_changes(shapes, data):
    shape = shapes[data.draw(st.sampled_from([1, 2, 3]))]
    sizes, firsts, out, back, slots = [], [], [], [], []
    free_blocks = data.draw(st.permutations(range(shape.BLOCKS)))
    free_slots = data.draw(st.permutations(range(shape.SLOTS)))
    for _ in shape.GROUPS:
        size, first = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 5))
        needed = -(-(size + first % shape.per_slot) // shape.per_slot) if size else 0
        sizes.append(size)
        firsts.append(first)
        out += [free_blocks.pop() for _ in range(size)]
        back += [free_blocks.pop() for _ in range(size)]
        slots += [free_slots.pop() for _ in range(needed)]
    before = [each.clone() for each in shape.tensors]

    host = CPULoadStoreSpec(slots)
    shape.mover.submit_store(1, GPULoadStoreSpec(out, sizes, firsts), host)
    shape.mover.submit_load(2, host, GPULoadStoreSpec(back, sizes, firsts))
    shape.mover.wait({1, 2})

    assert [1, 2] == [each.job_id for each in shape.mover.get_finished()]
    assert set() == shape.mover.take_failed_blocks() | shape.mover.take_failed_jobs({1})
    at = 0
    for group, size in zip(shape.GROUPS, sizes, strict=True):
        for source, target in zip(out[at : at + size], back[at : at + size], strict=True):
            for tensor in group:
                before[tensor][target] = before[tensor][source]
        at += size
    assert all(torch.equal(*pair) for pair in zip(before, shape.tensors, strict=True))


def test_workers_tell_their_failures_together():
    one, other = CopyNews({1: 1}, failed_jobs={1}), CopyNews({1: 1, 2: 1}, failed_jobs={2})

    both = one.aggregate(other)

    assert ({1: 2, 2: 1}, {1, 2}) == (both.completed_jobs, both.failed_jobs)


# --- what a model is known by


def test_the_same_files_elsewhere_are_the_same_model(tmp_path):
    one, other = weights(tmp_path / "one"), weights(tmp_path / "other")
    (other / "README.md").write_text("not of the model")

    assert fingerprint(one) == fingerprint(other)


@pytest.mark.parametrize("place", [0, 3, 6])
def test_a_changed_byte_is_another_model(tmp_path, place):
    content = bytearray(b"weights")
    content[place] ^= 1

    assert fingerprint(weights(tmp_path / "one")) != fingerprint(
        weights(tmp_path / "other", bytes(content))
    )


def test_another_configuration_is_another_model(tmp_path):
    model = weights(tmp_path / "model")
    before = fingerprint(model)
    (model / "config.json").write_bytes(b'{"rope_theta": 1}')

    assert before != fingerprint(model)


@pytest.mark.parametrize("place", [0, 1 << 16, PIECE - 1, PIECE, 2 * PIECE - 7, 2 * PIECE])
def test_each_byte_of_many_weights_counts(tmp_path, place):
    """One small tensor that was tuned is another model."""
    content = bytearray(2 * PIECE + 1)
    one = fingerprint(weights(tmp_path / "one", bytes(content)))
    content[place] = 1

    assert one != fingerprint(weights(tmp_path / "other", bytes(content)))


def test_a_folder_without_weights_is_no_model(tmp_path):
    (tmp_path / "config.json").write_text("{}")

    with pytest.raises(ValueError, match="no weights"):
        fingerprint(tmp_path)


def test_each_thing_that_decides_about_bytes_is_in_the_namespace(tmp_path):
    """Tensor and pipeline parallel shapes, too: a rank stores its own part of a block."""
    kv = KvSettings(host_bytes=1 << 20)
    model = weights(tmp_path / "model")
    config = config_of(model, kv)
    (group,) = config.groups
    parallel, cache = config.parallel, config.cache
    told = {"vllm": "0.32.0", "isa": "x"}
    variants = [
        (config, told, 4096),
        (config, told, 8192),
        (config, told | {"vllm": "0.33.0"}, 4096),
        (config, told | {"isa": "y"}, 4096),
        (replace(config, kv_cache_layout="NHD"), told, 4096),
        (replace(config, canonical_layout=True), told, 4096),
        (replace(config, model=replace(config.model, dtype="bfloat16")), told, 4096),
        (replace(config, cache=replace(cache, tokens_per_hash=32)), told, 4096),
        (replace(config, cache=replace(cache, blocks_per_chunk=2)), told, 4096),
        (replace(config, groups=(replace(group, tokens_per_block=32),)), told, 4096),
        (replace(config, groups=(group, replace(group, group_id=1))), told, 4096),
        *(
            (replace(config, parallel=replace(parallel, **{name: 2})), told, 4096)
            for name in ("world_size", "tp_size", "pp_size", "pcp_size", "dcp_size")
        ),
    ]
    digests = [digest(fields_of(one, each, value_bytes=size)) for one, each, size in variants]

    assert all(one != other for one, other in itertools.combinations(digests, 2))
    assert digests[0] == digest(fields_of(config_of(model, kv), told, value_bytes=4096))


# --- settings


@pytest.mark.parametrize(
    ("kv", "what"),
    [
        (KvSettings(store="/s"), "kv.host_bytes"),
        (KvSettings(load_share=0.0), "kv.load_share"),
        (KvSettings(save_share=1.5), "kv.save_share"),
        (KvSettings(load_s=0.0), "kv.load_s"),
        (KvSettings(host_bytes=-1), "kv.host_bytes"),
        (KvSettings(host_bytes=1 << 60), "--shm-size"),
    ],
)
def test_settings_that_do_not_fit_are_refused_with_what_to_change(kv, what):
    with pytest.raises(EngineFailedError, match=what):
        kv_config.transfer_args(kv)


def test_without_host_memory_vllm_gets_no_connector():
    assert {} == kv_config.transfer_args(KvSettings())


def test_host_memory_that_holds_no_block_is_refused(tmp_path):
    kv = KvSettings(host_bytes=1)

    with pytest.raises(ValueError, match="host_bytes"):
        HeadraceTiersSpec(config_of(weights(tmp_path / "model"), kv)).get_manager()


# --- what dead engines leave


@pytest.mark.parametrize(
    ("name", "young_s", "is_locked", "stays"),
    [
        ("vllm_offload_headrace-1.mmap", 0.0, False, False),
        ("vllm_offload_headrace-1.mmap", 60.0, False, True),
        ("vllm_offload_headrace-1.mmap", 0.0, True, True),
        ("vllm_offload_other.mmap", 0.0, False, True),
    ],
)
def test_only_files_of_our_dead_engines_are_removed(tmp_path, name, young_s, is_locked, stays):
    path = tmp_path / name
    path.write_bytes(b"")
    with path.open("rb") as held:
        if is_locked:
            fcntl.flock(held, fcntl.LOCK_SH)
        kv_region.remove_stale(tmp_path, young_s=young_s)

    assert stays == path.exists()
