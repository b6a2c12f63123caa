"""What a spec means for an engine process: its settings as command line arguments. Pure.

The settings themselves are the engine's (`services/engine/settings.py`); a test there holds that each is one of them.
"""

from __future__ import annotations

import json

from shared.spec import model

SYNC: dict[str, dict[str, object]] = {
    "auto": {},
    "synchronous": {"async_scheduling": False},
    "asynchronous": {"async_scheduling": True},
}
"""`syncStrategy` → fields of vLLM's `AsyncEngineArgs`."""
TENSOR_PARALLEL_SYNC: dict[str, dict[str, object]] = {
    "auto": {},
    "nccl": {"disable_custom_all_reduce": True},
    "custom": {"disable_custom_all_reduce": False},
}
"""`tensorParallelSync` → fields of vLLM's `AsyncEngineArgs`."""


def vllm_arguments(spec: model.LLMService) -> dict[str, object]:
    """Return fields of `AsyncEngineArgs` that the spec sets; `engine.args` has the last word."""
    engine = spec.engine
    found: dict[str, object] = {}
    if engine.quantization:
        found["quantization"] = engine.quantization
    if engine.speculative:
        found["speculative_config"] = engine.speculative
    if engine.tensor_parallel != 1:
        found["tensor_parallel_size"] = engine.tensor_parallel
    return (
        found
        | SYNC[spec.sync_strategy]
        | TENSOR_PARALLEL_SYNC[spec.tensor_parallel_sync]
        | engine.args
    )


def engine_arguments(spec: model.LLMService, *, model_path: str, kv_store: str) -> tuple[str, ...]:
    """Return the arguments of an engine of this service, what only its host knows left out.

    `model_path`: directory of the weights; `kv_store`: socket of the host's KV store, empty where there is none.
    """
    args = ["--service", spec.name, "--backend", spec.engine.backend]
    if spec.model.version:
        args += ["--version", spec.model.version]
    if spec.zone:
        args += ["--zone", spec.zone]
    if spec.engine.backend == "vllm":
        args += _vllm(spec, model_path, kv_store)
    elif spec.engine.backend == "openai":
        args += ["--openai-url", spec.engine.url]
        if spec.engine.max_model_len is not None:
            args += ["--openai-max-model-len", str(spec.engine.max_model_len)]
    elif spec.engine.max_model_len is not None:
        args += ["--fake-max-model-len", str(spec.engine.max_model_len)]
    for key, value in spec.engine.settings.items():
        args += [f"--{key}", value]
    return tuple(args)


def _vllm(spec: model.LLMService, model_path: str, kv_store: str) -> list[str]:
    kv = spec.kv
    args = ["--vllm-model", model_path, "--vllm-kv-cache-bytes", str(kv.pool_bytes)]
    args += ["--kv-host-bytes", str(kv.host_bytes), "--kv-min-tokens", str(kv.min_tokens)]
    if kv_store and kv.disk and kv.host_bytes:
        args += ["--kv-store", kv_store]
    if spec.engine.max_model_len is not None:
        args += ["--vllm-max-model-len", str(spec.engine.max_model_len)]
    extra = vllm_arguments(spec)
    if extra:
        args += ["--vllm-extra-args", json.dumps(extra)]
    return args


def not_yet(spec: model.LLMService) -> tuple[str, ...]:
    """Return the parts of a spec that are kept and that no service acts on yet."""
    found = []
    if spec.slo != model.Slo():
        found.append("slo")
    if spec.rollout != model.Rollout():
        found.append("rollout")
    if spec.defrag != model.DefragPolicy():
        found.append("defragPolicy")
    if spec.security != model.Security():
        found.append("security")
    scaling = spec.scaling
    if (
        scaling.mode != "manual"
        or scaling.target_rps is not None
        or scaling.predictive_window_s is not None
    ):
        found.append(
            "scalingPolicy.mode, targetRPS, predictiveWindow (replicas follow `headrace scale`)"
        )
    if scaling.start_mode != "hot":
        found.append("scalingPolicy.startMode")
    return tuple(found)
