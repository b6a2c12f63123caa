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


NAME = f"{__name__}.{WorkerFacts.__name__}"
"""How vLLM is told."""
ASK_BACKENDS = WorkerFacts.headrace_attention_backends.__name__
