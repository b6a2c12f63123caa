"""What vLLM's workers are asked beyond what they can say themselves (`worker_extension_cls`). Runs in a worker's process."""

from __future__ import annotations


class WorkerFacts:
    """Mixed into vLLM's worker; the methods are called by name through `collective_rpc`."""

    def headrace_attention_backends(self) -> list[str]:
        """Return the names of the attention backends of the model's layers."""
        layers = self.vllm_config.compilation_config.static_forward_context.values()  # type: ignore[attr-defined]
        backends = {
            layer.get_attn_backend().get_name()
            for layer in layers
            if hasattr(layer, "get_attn_backend")
        }
        return sorted(backends)

    def headrace_block_bytes(self) -> int:
        """Return how many bytes a block of the KV pool has in this worker: the groups of layers lie over each other."""
        groups = self.model_runner.kv_cache_config.kv_cache_groups  # type: ignore[attr-defined]
        return max(
            (
                group.kv_cache_spec.page_size_bytes
                # One that differs by layer tells the sum of all its layers.
                * (1 if hasattr(group.kv_cache_spec, "kv_cache_specs") else len(group.layer_names))
                for group in groups
            ),
            default=0,
        )


NAME = f"{__name__}.{WorkerFacts.__name__}"
"""How vLLM is told."""
ASK_BLOCK_BYTES = WorkerFacts.headrace_block_bytes.__name__
ASK_BACKENDS = WorkerFacts.headrace_attention_backends.__name__
