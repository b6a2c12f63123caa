"""From an engine's settings to vLLM's own: what Headrace chooses where the settings leave it open, and why."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import torch
from vllm.config import VllmConfig
from vllm.config.kv_events import KVEventsConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.model_executor.models import ModelRegistry
from vllm.platforms import CpuArchEnum, current_platform

from services.engine.adapters import kv_config, vllm_executor, vllm_worker
from services.engine.adapters.vllm_reserve import options_of
from services.engine.adapters.vllm_scheduler import scheduler_name
from services.engine.adapters.vllm_warmth import events_config
from services.engine.ports import EngineFailedError
from services.engine.settings import KvSettings, VllmSettings

TIERED_BLOCK = 32
"""Tokens in a block on the CPU platform where blocks come from lower tiers: the smallest that its attention takes. What a prefix has beyond
its last whole block is computed again, and a prompt of 7,000 tokens is computed as quickly as with vLLM's own choice of 128."""
_EXECUTOR = "distributed_executor_backend"
CPU_WORKER = "services.engine.adapters.vllm_cpu_worker.SeededCpuWorker"
"""By its name only: it imports vLLM's code for the CPU, which is not in every build."""


class _ModelConfig(msgspec.Struct):
    """What is read of a model's `config.json`."""

    architectures: list[str] = []


def engine_config(settings: VllmSettings, kv: KvSettings) -> VllmConfig:
    """Return vLLM's configuration for the model. Raises `EngineFailedError`, and what vLLM raises for models that it cannot load."""
    if current_platform.is_cpu():
        _register_model(Path(settings.model))
    config = engine_args(settings, kv).create_engine_config()
    kv_config.tell(config)
    scheduler = config.scheduler_config
    if scheduler.scheduler_cls is None:
        # Only now: which of its two vLLM wants depends on all the rest.
        scheduler.scheduler_cls = scheduler_name(is_async=bool(scheduler.async_scheduling))
    return config


def _register_model(model: Path) -> None:
    """Have vLLM look at the model's class in this process.

    It would import itself in yet another process to do so, once per machine, model class and version: ten seconds that only serve to
    keep the device closed here. Where anything is amiss, vLLM's own look tells what.
    """
    with suppress(OSError, msgspec.DecodeError, ImportError):
        config = msgspec.json.decode((model / "config.json").read_bytes(), type=_ModelConfig)
        for name in config.architectures:
            if (known := ModelRegistry.models.get(name)) is not None:
                ModelRegistry.register_model(name, known.load_model_cls())


def engine_args(settings: VllmSettings, kv: KvSettings) -> AsyncEngineArgs:
    """Return vLLM's arguments; `extra_args` wins over everything. Raises `EngineFailedError` where vLLM has no such argument."""
    args: dict[str, Any] = {
        "model": settings.model,
        "served_model_name": settings.served_name or None,
        "dtype": settings.dtype,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "enforce_eager": bool(settings.enforce_eager),
        "seed": settings.seed,
        # Each step says whether it ran as a graph.
        "cudagraph_metrics": True,
        "worker_extension_cls": vllm_worker.NAME,
        "scheduling_policy": "priority",
        # Each step says which blocks of the pool were lost, so that gateways know what is held.
        "kv_events_config": KVEventsConfig(**events_config()),
        # One backend, since the first request would choose for all; no free white space, in which small models never find an end.
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
    }
    args |= kv_config.transfer_args(kv) | settings.extra_args
    args["additional_config"] = {
        **options_of(settings.reserve),
        **(args.get("additional_config") or {}),
    }
    if current_platform.is_cpu():
        args |= _cpu_defaults(settings, kv) | settings.extra_args
        if args["dtype"] == "auto" and not _has_bfloat16():
            args["dtype"] = "float32"
    try:
        return AsyncEngineArgs(**args)
    except TypeError as error:
        raise EngineFailedError(f"vllm.extra_args: {error}") from error


def _cpu_defaults(settings: VllmSettings, kv: KvSettings) -> dict[str, Any]:
    """Return what holds on the CPU platform only; elsewhere vLLM sizes its pool by the device's memory."""
    defaults: dict[str, Any] = {
        "kv_cache_memory_bytes": settings.kv_cache_bytes,
        "worker_cls": CPU_WORKER,
    }
    if kv.host_bytes:
        defaults["block_size"] = TIERED_BLOCK
    if settings.enforce_eager is None:
        defaults["enforce_eager"] = True
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    if all(settings.extra_args.get(size, 1) == 1 for size in sizes):
        defaults[_EXECUTOR] = vllm_executor.NAME
    return defaults


def _has_bfloat16() -> bool:
    """Return whether this CPU multiplies bfloat16 in hardware.

    x86 without AVX-512 does not: oneDNN refuses, torch's reference is left, and float32 is 1.5 times (one row) to 10 times (512) as fast.
    """
    is_x86 = current_platform.get_cpu_architecture() == CpuArchEnum.X86
    return not is_x86 or torch.backends.cpu.get_cpu_capability() == "AVX512"
