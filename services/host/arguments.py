"""From a spec to the command line of its engines. Pure."""

from __future__ import annotations

import json
from pathlib import Path

from shared.spec.model import LLMService


def engine_arguments(spec: LLMService, *, model: Path | None) -> list[str]:
    """Return the settings of an engine that a spec decides; `model` is the directory that it loads."""
    args = ["--service", spec.name, "--backend", spec.engine.backend]
    if spec.engine.backend == "vllm":
        args += ["--vllm-model", str(model), "--vllm-kv-cache-bytes", str(spec.kv.pool_bytes)]
        args += ["--kv-host-bytes", str(spec.kv.host_bytes)]
        args += ["--kv-min-tokens", str(spec.kv.min_tokens)]
        if spec.engine.max_model_len is not None:
            args += ["--vllm-max-model-len", str(spec.engine.max_model_len)]
        extra = dict(spec.engine.args)
        if spec.engine.quantization:
            extra["quantization"] = spec.engine.quantization
        if spec.engine.speculative:
            extra["speculative_config"] = spec.engine.speculative
        if spec.engine.tensor_parallel > 1:
            extra["tensor_parallel_size"] = spec.engine.tensor_parallel
        if extra:
            args += ["--vllm-extra-args", json.dumps(extra)]
    if spec.engine.url:
        args += ["--openai-url", spec.engine.url]
    for key, value in spec.engine.settings.items():
        args += [f"--{key}", value]
    return args
