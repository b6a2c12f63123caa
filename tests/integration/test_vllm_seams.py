"""Each part of vLLM that the adapter relies on, by name: a new version that moves one fails here.

Behaviour is tested on the running engine (`test_vllm_engine`, the port's contract); this says which seam has gone, on any platform.
"""

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
    """Return what `module:attribute.attribute` names."""
    module, _, attributes = path.partition(":")
    found = importlib.import_module(module)
    for name in attributes.split("."):
        found = getattr(found, name)
    return found


CALLS = {
    "vllm.v1.engine.async_llm:AsyncLLM.__init__": "vllm_config executor_class log_stats log_requests client_addresses",
    "vllm.v1.engine.async_llm:AsyncLLM.abort": "request_id internal",
    "vllm.v1.engine.async_llm:AsyncLLM.shutdown": "timeout",
    "vllm.v1.engine.async_llm:AsyncLLM.get_supported_tasks": "",
    "vllm.v1.engine.async_llm:AsyncLLM.get_tokenizer": "",
    "vllm.v1.engine.input_processor:InputProcessor.process_inputs": "request_id prompt params supported_tasks priority",
    "vllm.v1.engine.input_processor:InputProcessor.assign_request_id": "request",
    "vllm.v1.engine.output_processor:OutputProcessor.add_request": "request prompt parent_req request_index queue",
    "vllm.v1.engine.output_processor:OutputProcessor.propagate_error": "e",
    "vllm.v1.engine.output_processor:RequestOutputCollector.__init__": "output_kind request_id",
    "vllm.v1.engine.output_processor:RequestOutputCollector.put": "output",
    "vllm.v1.engine.core_client:AsyncMPClient.add_request_async": "request",
    "vllm.v1.engine.core_client:AsyncMPClient.abort_requests_async": "request_ids",
    "vllm.v1.engine.utils:CoreEngineProcManager.finished_procs": "",
    "vllm.renderers.hf:resolve_chat_template": "tokenizer chat_template tools model_config",
    "vllm.renderers.hf:resolve_chat_template_content_format": "chat_template tools given_format tokenizer model_config",
    "vllm.parser:ParserManager.get_parser": "tool_parser_name enable_auto_tools tokenizer",
    "vllm.parser.abstract_parser:Parser.parse_delta": "delta_text delta_token_ids request prompt_token_ids finished",
    "vllm.parser.abstract_parser:Parser.adjust_request": "request",
    "vllm.v1.structured_output.backend_xgrammar:XgrammarBackend.__init__": "vllm_config tokenizer vocab_size",
    "vllm.v1.structured_output.backend_xgrammar:XgrammarBackend.compile_grammar": "request_type grammar_spec",
    "vllm.v1.structured_output.request:get_structured_output_key": "params",
    "vllm.config:ModelConfig.get_vocab_size": "",
    "vllm.v1.engine.async_llm:AsyncLLM.collective_rpc": "method",
    "vllm.v1.core.block_pool:BlockPool.get_num_free_blocks": "",
    "vllm.v1.core.kv_cache_utils:FreeKVCacheBlockQueue.popleft_n": "n",
    "vllm.v1.core.kv_cache_utils:FreeKVCacheBlockQueue.prepend_n": "blocks",
    "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator.get_num_blocks_to_allocate": (
        "request_id num_tokens new_computed_blocks num_encoder_tokens total_computed_tokens num_local_computed_tokens"
        " num_tokens_main_model apply_admission_cap prefill_end"
    ),
    "vllm.v1.core.sched.scheduler:Scheduler._get_local_prefix_cache_hit": "request",
    "vllm.inputs.engine:tokens_input": "prompt_token_ids cache_salt",
    "vllm.config:ModelConfig.get_diff_sampling_param": "",
}

FIELDS = {
    "vllm:SamplingParams": (
        "temperature top_p top_k min_p repetition_penalty max_tokens min_tokens stop stop_token_ids seed logprobs presence_penalty"
        " frequency_penalty logit_bias ignore_eos structured_outputs skip_special_tokens output_kind skip_clone"
    ),
    "vllm.sampling_params:StructuredOutputsParams": "json json_object",
    "vllm.v1.engine:EngineCoreRequest": "request_id sampling_params external_req_id priority prompt_token_ids cache_salt",
    "vllm.outputs:CompletionOutput": "text token_ids logprobs finish_reason stop_reason",
    "vllm.logprobs:Logprob": "logprob rank decoded_token",
    "vllm.v1.metrics.stats:SchedulerStats": "num_running_reqs kv_cache_usage kv_connector_stats cudagraph_stats",
    "vllm.v1.core.sched.output:SchedulerOutput": "num_scheduled_tokens scheduled_new_reqs scheduled_cached_reqs",
    "vllm.v1.core.sched.output:NewRequestData": "req_id",
    "vllm.v1.core.sched.output:CachedRequestData": "resumed_req_ids",
    "vllm.compilation.cuda_graph:CUDAGraphStat": "runtime_mode",
    "vllm.config:ParallelConfig": "worker_extension_cls",
    "vllm.config:ObservabilityConfig": "cudagraph_metrics",
    "vllm.config:SchedulerConfig": "max_num_seqs policy scheduler_cls async_scheduling",
    "vllm.config:CacheConfig": "block_size num_gpu_blocks",
    "vllm.config:ModelConfig": "max_model_len max_logprobs",
    "vllm.v1.engine.core_client:BackgroundResources": "ctx engine_manager",
}


@pytest.mark.parametrize("path", CALLS)
def test_a_call_takes_the_arguments_that_we_give(path):
    parameters = inspect.signature(part(path)).parameters

    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    assert takes_any or set(CALLS[path].split()) <= parameters.keys()


@pytest.mark.parametrize("path", FIELDS)
def test_a_value_has_the_fields_that_we_use(path):
    found = part(path)
    fields = (
        {field.name for field in dataclasses.fields(found)}
        if dataclasses.is_dataclass(found)
        else set(found.__struct_fields__)
    )

    assert set(FIELDS[path].split()) <= fields


def test_outputs_carry_the_count_of_cached_tokens():
    assert "num_cached_tokens" in inspect.signature(part("vllm.outputs:RequestOutput")).parameters


def test_the_async_engine_keeps_its_parts_where_we_look():
    source = inspect.getsource(part("vllm.v1.engine.async_llm:AsyncLLM.__init__"))

    for name in (
        "input_processor",
        "output_processor",
        "engine_core",
        "logger_manager",
        "output_handler",
    ):
        assert f"self.{name}" in source
    assert "engine_manager" in inspect.getsource(
        part("vllm.v1.engine.core_client:BackgroundResources")
    )


def test_a_logger_can_be_put_in_later_and_gets_every_steps_counts():
    source = inspect.getsource(part("vllm.v1.engine.async_llm:AsyncLLM._run_output_handler"))

    assert "logger_ref = self._logger_ref" in source
    assert "logger_ref[0].record(" in source
    for name in ("engine_idx", "scheduler_stats", "iteration_stats", "mm_cache_stats"):
        assert f"{name}=" in source.partition("logger_ref[0].record(")[2]


def test_the_front_keeps_no_statistics_of_tokens_unless_asked():
    source = inspect.getsource(part("vllm.v1.engine.async_llm:AsyncLLM._run_output_handler"))

    assert "IterationStats() if (log_stats and num_outputs) else None" in source


def test_the_output_loop_ends_when_the_core_dies():
    source = inspect.getsource(part("vllm.v1.engine.async_llm:AsyncLLM._run_output_handler"))

    assert "get_output_async" in source
    assert "propagate_error" in source


def test_every_step_brings_statistics():
    source = inspect.getsource(part("vllm.v1.core.sched.scheduler:Scheduler.update_from_output"))

    assert "self.make_stats(" in source
    assert "scheduler_stats = stats" in source


SCHEDULERS = {
    "StepScheduler": "vllm.v1.core.sched.scheduler:Scheduler",
    "AsyncStepScheduler": "vllm.v1.core.sched.async_scheduler:AsyncScheduler",
}
OVERRIDDEN = {
    "schedule": "",
    "update_from_output": "scheduler_output model_runner_output",
    "make_stats": "spec_decoding_stats kv_connector_stats cudagraph_stats",
    "make_spec_decoding_stats": "num_draft_tokens num_accepted_tokens request_id",
    "_preempt_request": "request",
    "_free_request": "request",
    "_set_kv_fetch_stage": "request stage",
}


LAYERS = {
    "services.engine.adapters.vllm_scheduler:StepFacts": OVERRIDDEN,
    "services.engine.adapters.vllm_reserve:BlockReserve": {
        "schedule": "",
        "_free_request": "request",
    },
}


@pytest.mark.parametrize("ours", SCHEDULERS)
def test_our_schedulers_are_layers_over_vllms(ours):
    made = part(f"services.engine.adapters.vllm_scheduler:{ours}")

    assert (made, *map(part, LAYERS), part(SCHEDULERS[ours])) == made.__mro__[:4]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("ours", SCHEDULERS)
def test_our_schedulers_extend_methods_that_vllms_have(ours, layer):
    theirs, made = part(SCHEDULERS[ours]), part(layer)

    for name, parameters in LAYERS[layer].items():
        assert name in vars(made)
        assert set(parameters.split()) <= inspect.signature(getattr(theirs, name)).parameters.keys()
    own = {name for name in vars(made) if not name.startswith("__") and name not in LAYERS[layer]}
    assert not own & set(dir(theirs)), "a method of ours would replace one of vLLM's"


def test_our_layers_share_only_what_each_passes_on():
    facts, reserve = map(part, LAYERS)
    common = {name for name in vars(facts) if name in vars(reserve) and not name.startswith("__")}

    assert {"schedule", "_free_request"} == common


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("ours", SCHEDULERS)
def test_no_attribute_of_our_schedulers_is_one_of_vllms(ours, layer):
    lines = inspect.getsource(part(layer)).splitlines()
    written = {
        line.split("self.")[1].split(":")[0].split(" =")[0]
        for line in lines
        if line.strip().startswith("self.") and " = " in line
    }
    sources = [inspect.getsource(each) for each in part(SCHEDULERS[ours]).__mro__[:-1]]
    theirs = [each for each in sources if "vllm.v1" in each[:20000] or "class Scheduler" in each]

    assert written & {"_midway", "_lanes"}
    # The queue is replaced on purpose.
    assert {"waiting"} >= {
        name for name in written if any(f"self.{name} = " in each for each in theirs)
    }


def test_the_waiting_queue_is_asked_for_one_request_after_the_other():
    source = inspect.getsource(part("vllm.v1.core.sched.scheduler:Scheduler.schedule"))
    waiting = source.partition("# Next, schedule the WAITING requests.")[2]

    assert "request_queue = self.kv_holding_waiting" in waiting
    assert "if not request_queue or input_budget" in waiting
    for call in (
        "request = request_queue.peek_request()",
        "request = request_queue.pop_request()",
        "request_to_skip = from_queue.pop_request()",
        "self.waiting.prepend_requests(step_skipped_waiting)",
    ):
        assert call in waiting
    # A request is taken once it has its blocks.
    assert waiting.index("self.kv_cache_manager.allocate_slots(") < waiting.index(
        "request = request_queue.pop_request()"
    )


def test_nobody_else_asks_whether_the_waiting_queue_is_empty():
    source = inspect.getsource(part("vllm.v1.core.sched.scheduler:Scheduler"))
    uses = {line.strip() for line in source.splitlines() if "self.waiting" in line}

    assert {line for line in uses if line.startswith(("if", "while", "return"))} == {
        "return len(self.running), len(self.waiting) + len(self.kv_holding_waiting)"
    }


def test_our_queue_has_all_that_vllms_has():
    theirs = part("vllm.v1.core.sched.request_queue:RequestQueue")
    ours = part("services.engine.adapters.vllm_queue:ReservedQueue")

    assert set() == ours.__abstractmethods__
    assert theirs.__abstractmethods__ <= set(vars(ours))


def test_the_share_of_a_long_prompt_is_read_anew_for_each_step():
    source = inspect.getsource(part("vllm.v1.core.sched.scheduler:Scheduler.schedule"))

    assert "self.scheduler_config.long_prefill_token_threshold" in source
    assert "if num_eligible_reqs > 1" in source


@pytest.mark.parametrize(
    ("path", "names"),
    [
        (
            "vllm.v1.core.sched.scheduler:Scheduler",
            "requests running current_step kv_cache_manager waiting kv_holding_waiting policy max_model_len block_size"
            " max_num_scheduled_tokens num_lookahead_tokens num_spec_tokens scheduler_config vllm_config kv_event_publisher",
        ),
        (
            "vllm.v1.request:Request",
            "request_id num_computed_tokens num_prompt_tokens num_preemptions is_prefill_chunk next_decode_eligible_step block_hashes",
        ),
        (
            "vllm.v1.core.kv_cache_manager:KVCacheManager",
            "block_pool coordinator empty_kv_cache_blocks",
        ),
        ("vllm.v1.core.block_pool:BlockPool", "num_gpu_blocks free_block_queue hash_block_size"),
        (
            "vllm.v1.core.kv_cache_utils:FreeKVCacheBlockQueue",
            "num_free_blocks fake_free_list_head",
        ),
        (
            "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator",
            "single_type_managers",
        ),
        ("vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager", "req_to_blocks"),
        ("vllm.config:CompilationConfig", "static_forward_context"),
    ],
)
def test_the_core_keeps_its_facts_where_we_look(path, names):
    source = inspect.getsource(part(path))

    for name in names.split():
        assert f"self.{name}" in source or f"    {name}:" in source, name


def test_a_step_is_marked_as_prompt_after_it_was_made_and_before_its_output():
    source = inspect.getsource(
        part("vllm.v1.core.sched.scheduler:Scheduler._update_after_schedule")
    )

    assert "request.is_prefill_chunk = request.num_computed_tokens <" in source


def test_the_events_of_a_step_are_out_before_its_statistics_are_made():
    source = inspect.getsource(part("vllm.v1.core.sched.scheduler:Scheduler.update_from_output"))

    assert source.index("kv_event_publisher.publish(") < source.index("self.make_stats(")


def test_the_counts_of_a_step_come_after_its_outputs():
    source = inspect.getsource(part("vllm.v1.engine.async_llm:AsyncLLM._run_output_handler"))

    assert source.index("process_outputs(") < source.index("logger_ref[0].record(")


def test_drafts_are_counted_with_the_arguments_by_name():
    source = inspect.getsource(part("vllm.v1.core.sched.scheduler:Scheduler.update_from_output"))
    call = source.partition("self.make_spec_decoding_stats(")[2].partition(")")[0]

    for name in ("num_draft_tokens=", "num_accepted_tokens=", "request_id="):
        assert name in call


def test_the_kinds_of_steps_are_the_known_ones():
    kinds = part("services.engine.adapters.vllm_scheduler:KINDS")

    assert set(kinds) <= {mode.name for mode in part("vllm.config:CUDAGraphMode")}


@pytest.mark.parametrize(
    ("is_async", "name"), [(False, "StepScheduler"), (True, "AsyncStepScheduler")]
)
def test_vllm_finds_our_scheduler_by_its_name(is_async, name):
    qualified = part("services.engine.adapters.vllm_scheduler:scheduler_name")(is_async=is_async)

    assert name == part("vllm.utils.import_utils:resolve_obj_by_qualname")(qualified).__name__


def test_workers_take_our_question():
    worker = part("services.engine.adapters.vllm_worker:WorkerFacts")
    theirs = part("vllm.v1.worker.worker_base:WorkerBase")

    assert not [
        name for name in vars(worker) if not name.startswith("__") and hasattr(theirs, name)
    ]
    layer = part("vllm.model_executor.layers.attention:Attention")
    assert inspect.signature(layer.get_attn_backend).parameters.keys() == {"self"}


def test_the_reasons_to_end_are_the_known_ones():
    reasons = {str(reason) for reason in part("vllm.v1.engine:FinishReason")}

    assert reasons == {"stop", "length", "abort", "error", "repetition"}


def test_the_installed_version_is_in_our_range():
    part("services.engine.adapters.vllm_version:check_version")(part("vllm:__version__"))


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1+cpu", "0.33.0", "0.33.2.dev3"])
def test_a_version_in_range_starts(version):
    part("services.engine.adapters.vllm_version:check_version")(version)


@pytest.mark.parametrize("version", ["0.31.9", "0.34.0", "1.0.0", "dev"])
def test_another_version_says_what_to_install(version):
    with pytest.raises(
        part("services.engine.ports:EngineFailedError"), match=r"install vllm >=0\.32,<0\.34"
    ):
        part("services.engine.adapters.vllm_version:check_version")(version)


def test_the_core_builds_grammars_as_they_are_tried_out():
    manager = "vllm.v1.structured_output:StructuredOutputManager"

    made = inspect.getsource(part(f"{manager}.grammar_init"))
    assert (
        "XgrammarBackend(\n                    self.vllm_config,\n                    tokenizer=self.tokenizer,"
        in made
    )
    assert "vocab_size = self.vllm_config.model_config.get_vocab_size()" in made
    assert "self.backend.compile_grammar(" in inspect.getsource(part(f"{manager}._create_grammar"))


def test_devices_tell_their_memory_where_there_is_a_driver():
    read = part("services.engine.adapters.vllm_devices:device_memory")()

    assert read is None or all(0 < each.used_bytes <= each.total_bytes for each in read())
