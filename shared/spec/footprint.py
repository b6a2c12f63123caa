"""What a replica of a service takes of its host, told before it runs. Pure."""

from __future__ import annotations

import math

from shared.spec.model import LLMService

ENGINE_OVERHEAD_BYTES = 1_200 << 20
"""Resident memory of a vLLM engine's processes without weights and KV blocks: measured 0.9 to 1.1 GiB on the CPU build."""


def cores_needed(spec: LLMService) -> int:
    """Return the cores that one replica has for itself; 0: it may use any that nobody has for itself."""
    return math.ceil(spec.resources.cpu) if spec.resources.cpu is not None else 0


def memory_needed(spec: LLMService, *, weight_bytes: int = 0) -> int:
    """Return the host memory of one replica: its limit, where the service has one, else what its engine takes; 0: next to nothing.

    On the CPU the weights count twice: a processor without bfloat16 keeps them as float32, and loading holds a second copy for a moment.
    """
    if spec.resources.memory_bytes is not None:
        return spec.resources.memory_bytes
    if spec.engine.backend != "vllm":
        return 0
    if spec.resources.gpu:
        return ENGINE_OVERHEAD_BYTES + spec.kv.host_bytes + weight_bytes
    return ENGINE_OVERHEAD_BYTES + spec.kv.pool_bytes + spec.kv.host_bytes + 2 * weight_bytes
