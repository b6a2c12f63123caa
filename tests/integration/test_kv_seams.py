"""Each part of vLLM's KV offloading that the tiers rely on, by name: a new version that moves one fails here."""

from __future__ import annotations

import dataclasses
import importlib
import inspect

import pytest

from tests.support.vllm_rig import imported_vllm


@pytest.fixture(scope="module", autouse=True)
def _vllm() -> None:
    imported_vllm()


def part(path: str):
    module, _, attributes = path.partition(":")
    found = importlib.import_module(module)
    for name in attributes.split("."):
        found = getattr(found, name)
    return found


OFFLOAD = "vllm.v1.kv_offload"
CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.offloading"
CALLS = {
    f"{OFFLOAD}.tiering.manager:CPUPrimaryTierOffloadingManager.__init__": (
        "num_chunks mmap_region cache_policy cache_policy_module_path enable_events"
    ),
    f"{OFFLOAD}.tiering.manager:TieringOffloadingManager.__init__": "primary_tier secondary_tiers",
    f"{OFFLOAD}.tiering.manager:TieringOffloadingManager.complete_store": "keys req_context success",
    f"{OFFLOAD}.tiering.factory:SecondaryTierFactory.create_secondary_tier": (
        "tier_config primary_kv_view offloading_spec"
    ),
    f"{OFFLOAD}.tiering.base:SecondaryTierManager.__init__": (
        "offloading_spec primary_kv_view tier_type backpressure_detector"
    ),
    f"{OFFLOAD}.tiering.base:JobResult.__init__": "job_id success successful_keys transfer_bytes",
    f"{OFFLOAD}.cpu.shared_offload_region:SharedOffloadRegion.__init__": (
        "engine_id num_chunks rank kv_bytes_per_chunk cpu_page_size"
    ),
    f"{OFFLOAD}.cpu.shared_offload_region:SharedOffloadRegion.create_next_worker_view": (
        "tensor_page_size"
    ),
    f"{OFFLOAD}.base:make_offload_key": "block_hash group_idx",
    f"{OFFLOAD}.base:ReqContext.get_offload_key_position": "key",
    f"{OFFLOAD}.base:OffloadingWorker.submit_store": "job_id src_spec dst_spec",
    f"{OFFLOAD}.base:OffloadingWorker.submit_load": "job_id src_spec dst_spec",
    f"{OFFLOAD}.base:OffloadingWorker.wait": "job_ids",
    f"{OFFLOAD}.base:TransferResult.__init__": "job_id success transfer_size transfer_time",
    f"{CONNECTOR}_connector:OffloadingConnector.on_new_request": "request",
    f"{CONNECTOR}_connector:OffloadingConnector.get_num_new_matched_tokens": (
        "request num_computed_tokens"
    ),
    f"{CONNECTOR}_connector:OffloadingConnector.update_connector_output": "connector_output",
    f"{CONNECTOR}_connector:OffloadingConnector.build_connector_worker_meta": "",
    f"{CONNECTOR}_connector:OffloadingConnector.get_block_ids_with_load_errors": "",
    f"{CONNECTOR}_connector:OffloadingConnector.request_finished_all_groups": "request block_ids",
    f"{CONNECTOR}_connector:OffloadingConnector.get_external_cache_hit_sources": (
        "request num_external_tokens"
    ),
    "vllm.config:ModelConfig.compute_hash": "",
}
FIELDS = {
    f"{OFFLOAD}.config:OffloadingConfig": (
        "groups engine_id model cache parallel kv_cache_layout canonical_layout replicated_layout"
    ),
    f"{OFFLOAD}.config:OffloadingGroupConfig": "tokens_per_block layer_names group_id",
    f"{OFFLOAD}.config:OffloadingCacheConfig": "tokens_per_hash blocks_per_chunk",
    f"{OFFLOAD}.config:OffloadingParallelConfig": "rank world_size tp_size pp_size pcp_size dcp_size",
    f"{OFFLOAD}.tiering.base:TransferJob": "job_id keys chunk_ids req_context",
    f"{OFFLOAD}.base:CanonicalKVCacheTensor": "tensor page_size_bytes",
    f"{OFFLOAD}.base:CanonicalKVCacheRef": "tensor_idx page_size_bytes",
    f"{CONNECTOR}.common:OffloadingWorkerMetadata": "completed_jobs transfer_stats",
    f"{CONNECTOR}.common:TransferStats": "load store",
    f"{CONNECTOR}.scheduler:TransferJobStatus": "keys is_store",
    "vllm.config:KVTransferConfig": (
        "kv_connector kv_connector_module_path kv_role engine_id kv_load_failure_policy"
        " kv_connector_extra_config"
    ),
    "vllm.v1.metrics.stats:PrefillStats": "num_external_cached_tokens",
}


@pytest.mark.parametrize("path", CALLS)
def test_a_call_takes_the_arguments_that_we_give(path):
    parameters = inspect.signature(part(path)).parameters

    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    assert takes_any or set(CALLS[path].split()) <= parameters.keys()


@pytest.mark.parametrize("path", FIELDS)
def test_a_value_has_the_fields_that_we_use(path):
    assert set(FIELDS[path].split()) <= {field.name for field in dataclasses.fields(part(path))}


def source(path: str) -> str:
    return inspect.getsource(part(path))


def test_every_slot_that_falls_free_passes_where_it_can_be_kept_aside():
    book = source(f"{OFFLOAD}.cpu.manager:CPUOffloadingManager")

    assert 1 == book.count("self._free_list.append(")
    assert "self._free_list.append(" in source(
        f"{OFFLOAD}.cpu.manager:CPUOffloadingManager._free_chunk"
    )
    reset = source(f"{OFFLOAD}.cpu.manager:CPUOffloadingManager.reset_cache")
    assert "self._free_list.clear()" in reset
    assert "self._num_allocated_chunks = 0" in reset
    assert "num_fresh = min(len(keys), self._num_chunks - self._num_allocated_chunks)" in book


def test_a_failed_load_lets_its_slots_fall_free_in_the_same_turn():
    done = source(f"{OFFLOAD}.tiering.manager:TieringOffloadingManager._complete_promotion")

    assert "self.primary_tier.complete_write(" in done
    assert "self._free_chunk(chunk)" in source(
        f"{OFFLOAD}.cpu.manager:CPUOffloadingManager.complete_store"
    )


def test_dropping_all_blocks_drains_the_tiers_first():
    reset = source(f"{OFFLOAD}.tiering.manager:TieringOffloadingManager.reset_cache")

    places = [
        reset.index(each)
        for each in (
            "tier.drain_jobs()",
            "self._process_finished_jobs()",
            "self.primary_tier.reset_cache()",
        )
    ]
    assert places == sorted(places)


def test_vllm_takes_each_copy_for_a_success_so_that_failures_are_told_beside_it():
    assert "assert transfer_result.success" in source(
        f"{CONNECTOR}.worker:OffloadingConnectorWorker.get_finished"
    )
    told = source("vllm.v1.worker.kv_connector_model_runner_mixin:KVConnectorModelRunnerMixin")
    places = [
        told.index(each)
        for each in (
            "get_transfer_results(",
            "get_block_ids_with_load_errors()",
            "build_connector_worker_meta()",
        )
    ]
    assert places == sorted(places)


def test_workers_map_host_memory_before_the_scheduler_does():
    core = source("vllm.v1.engine.core:EngineCore.__init__")

    assert core.index("self._initialize_kv_caches(") < core.index("Scheduler(")


def test_the_file_in_memory_is_where_we_look_for_stale_ones():
    made = source(f"{OFFLOAD}.cpu.shared_offload_region:SharedOffloadRegion.__init__")

    assert 'f"/dev/shm/vllm_offload_{engine_id}.mmap"' in made
    assert "self._creator = True" in made


def test_block_hashes_are_the_same_in_every_process():
    from vllm.utils.hashing import get_hash_fn_by_name  # noqa: PLC0415 - after the fixture

    seeds = source("vllm.v1.core.kv_cache_utils:resolve_none_hash_seed")
    assert "os.getenv(" in seeds
    one = get_hash_fn_by_name("sha256_cbor")((b"parent", (1, 2), ("salt",)))
    assert "9e85" == one.hex()[:4]


def test_a_request_tells_its_whole_prompt_when_it_comes():
    from vllm.v1.request import Request  # noqa: PLC0415 - after the fixture

    made = inspect.getsource(Request.__init__)
    assert "self.block_hashes" in made
    assert "self.num_prompt_tokens" in made


def test_vllm_reserves_a_processor_for_a_connector_which_we_take_back():
    assert "config.kv_transfer_config" in source("vllm.utils.ompmultiprocessing:OMPProcessManager")
