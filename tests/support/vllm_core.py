"""vLLM's scheduler with our records and without a model: tests say what a step computed, so that each history can be made at will."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from vllm.config import (
    CacheConfig,
    KVTransferConfig,
    ModelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.config.kv_events import KVEventsConfig
from vllm.distributed.kv_events import KVCacheEvent
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.metrics.cache_hit_source import CacheHitSource
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder
from vllm.v1.structured_output import StructuredOutputManager

from services.engine.adapters.vllm_reserve import options_of
from services.engine.adapters.vllm_scheduler import KEY, AsyncStepScheduler, StepScheduler
from services.engine.adapters.vllm_warmth import events_config
from services.engine.reserve_plan import ReserveSettings
from services.engine.steps.step import KvMoves, Step

BLOCK = 16
"""Tokens in a block."""
BUDGET = 64
"""Prompt tokens in a step."""
EXTERNAL = 32
"""Tokens that the connector finds for each prompt."""


WAITS: list[tuple[list[str], list[str]]] = []
"""What the connector says in the next steps of who waits for blocks from below L2, and of who does so no longer."""
MOVES: list[KvMoves] = []
"""The same of what moved between tiers."""


class Stats(KVConnectorStats):
    """What a real connector would report."""

    def is_empty(self) -> bool:
        return not self.data


class Connector(KVConnectorBase_V1):
    """Finds the beginning of each prompt in a lower tier, and loads it in its own time."""

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int, bool]:
        return max(0, EXTERNAL - num_computed_tokens), num_computed_tokens < EXTERNAL

    def get_external_cache_hit_sources(
        self, request: Request, num_external_tokens: int
    ) -> dict[CacheHitSource, int]:
        """Half of it was in host memory."""
        half = num_external_tokens // 2
        return {CacheHitSource.HOST: half, CacheHitSource.DISK: num_external_tokens - half}

    def take_waits(self) -> tuple[list[str], list[str]]:
        return WAITS.pop(0) if WAITS else ([], [])

    def take_moves(self) -> KvMoves | None:
        return MOVES.pop(0) if MOVES else None

    def update_state_after_alloc(self, *_args: Any) -> None:
        return

    def build_connector_meta(self, *_args: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def take_events(self) -> list[KVCacheEvent]:
        events, self.events = getattr(self, "events", []), []
        return events

    def get_kv_connector_stats(self) -> KVConnectorStats:
        return Stats(data={"loads": 3})

    def start_load_kv(self, *_args: Any, **_kwargs: Any) -> None:
        return

    def wait_for_layer_load(self, *_args: Any) -> None:
        return

    def save_kv_layer(self, *_args: Any, **_kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return


class Core:
    """A scheduler, and the front's side of its statistics."""

    def __init__(
        self,
        model: Path,
        *,
        is_async: bool,
        blocks: int = 64,
        speculates: bool = False,
        connects: bool | KVTransferConfig = False,
        reserve: ReserveSettings | None = None,
    ) -> None:
        """`reserve`: none: vLLM's own queue. `connects`: with the connector of this file, or with another one."""
        config = config_of(model, is_async=is_async, speculates=speculates, connects=bool(connects))
        if isinstance(connects, KVTransferConfig):
            config.kv_transfer_config = connects
        config.cache_config.num_gpu_blocks = blocks
        if reserve is not None:
            config.additional_config = options_of(reserve)
        group = KVCacheGroupSpec(
            ["layer"],
            FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32),
        )
        self.scheduler: Any = (AsyncStepScheduler if is_async else StepScheduler)(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[group]
            ),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            log_stats=True,
        )
        self.connector_stats: dict[str, Any] = {}

    def add(
        self, name: str, prompt: int | Sequence[int], tokens: int = 100, priority: int = 1
    ) -> None:
        """Add a request; a prompt is its length, or the tokens themselves."""
        ids = (
            [hash(name) % 1000 + place for place in range(prompt)]
            if isinstance(prompt, int)
            else prompt
        )
        params = SamplingParams(max_tokens=tokens, ignore_eos=True)
        params.update_from_generation_config({}, eos_token_id=2)
        hasher = block_hasher(BLOCK)
        self.scheduler.add_request(
            Request(
                name,
                list(ids),
                params,
                pooling_params=None,
                block_hasher=hasher,
                priority=priority,
            )
        )

    def begin(self) -> Any:
        """Make a step."""
        return self.scheduler.schedule()

    def end(
        self, output: Any, *, accepted: int = 0, loaded: Sequence[str] = (), copies: Any = None
    ) -> Step:
        """End a step: each request that has no prompt left made a token, and its drafts held so far. Return its record.

        `copies`: what the connector's workers say of their copies.
        """
        names = list(output.num_scheduled_tokens)
        sampled = [
            []
            if self._is_midway(name, output)
            else [7] * (1 + accepted * self._drafts(name, output))
            for name in names
        ]
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=sampled,
            kv_connector_output=KVConnectorOutput(
                finished_recving={*loaded}, kv_connector_worker_meta=copies
            )
            if loaded or copies
            else None,
        )
        outputs = self.scheduler.update_from_output(output, result)
        return self._over_the_wire(outputs[0])

    def step(self, **outcome: Any) -> Step:
        """Make a step and end it."""
        return self.end(self.begin(), **outcome)

    def abort(self, name: str) -> None:
        """End a request from outside."""
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def _drafts(self, name: str, output: Any) -> int:
        return bool(output.scheduled_spec_decode_tokens.get(name))

    def _is_midway(self, name: str, output: Any) -> bool:
        request = self.scheduler.requests.get(name)
        if request is None:
            return False
        return bool(request.is_prefill_chunk)

    def _over_the_wire(self, outputs: EngineCoreOutputs) -> Step:
        """Return the record as it comes out of vLLM's own serialisation."""
        decoder = MsgpackDecoder(EngineCoreOutputs)
        arrived = decoder.decode(MsgpackEncoder().encode(outputs))
        assert arrived.scheduler_stats is not None
        self.connector_stats = dict(arrived.scheduler_stats.kv_connector_stats or {})
        return msgspec.msgpack.decode(self.connector_stats.pop(KEY), type=Step)


def config_of(model: Path, *, is_async: bool, speculates: bool, connects: bool) -> VllmConfig:
    """Return a configuration for which no model is loaded."""
    model_config = ModelConfig(
        model=str(model), dtype="float32", max_model_len=512, skip_tokenizer_init=True
    )
    speculation = None
    if speculates:
        speculation = SpeculativeConfig(
            method="ngram", num_speculative_tokens=3, prompt_lookup_max=3, prompt_lookup_min=1
        )
    connection = None
    if connects:
        connection = KVTransferConfig(
            kv_connector=Connector.__name__,
            kv_connector_module_path=__name__,
            kv_role="kv_both",
        )
    return VllmConfig(
        model_config=model_config,
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
        scheduler_config=SchedulerConfig(
            max_num_seqs=16,
            max_num_batched_tokens=BUDGET,
            max_model_len=512,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            policy="priority",
            async_scheduling=is_async,
        ),
        speculative_config=speculation,
        kv_transfer_config=connection,
        kv_events_config=KVEventsConfig(**events_config()),
    )


def tiny_model(folder: Path) -> Path:
    """Write a model's configuration without a model."""
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "vocab_size": 2048,
                "max_position_embeddings": 512,
                "torch_dtype": "float32",
            }
        )
    )
    return folder


def block_hasher(block: int) -> Any:
    """Return what gives the blocks of a request their names."""
    init_none_hash(sha256)
    return get_request_block_hasher(block, sha256)
