"""What an engine imports sooner or later, imported now: by the zygote once for all engines, or by an engine that starts alone.

Imports only: nothing here may compute, start a thread or touch a device. On CUDA the list ends where vLLM itself still forks.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager

from services.engine.adapters import vllm_env

FRONT = (
    "uvloop",
    "services.engine.adapters.vllm_launch",
    "services.engine.adapters.vllm_engine",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "xgrammar",
)
"""What the process needs that answers. vLLM forks from a process that has imported as much, also on CUDA."""

FRONT_LATER = (
    "services.engine.adapters.kv_tier",
    "setproctitle",
    "vllm.renderers.hf",
    "vllm.tokenizers.hf",
    "vllm.plugins.lora_resolvers.filesystem_resolver",
    "vllm.plugins.lora_resolvers.hf_hub_resolver",
)
"""The same, imported late by vLLM; a version that has no such module does without."""

CPU_CORE_LATER = (
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.attention.backends.zentorch_sdpa",
    "vllm.v1.pool.flash_maxsim",
    "vllm.distributed.elastic_ep.elastic_execute",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.model_executor.models.llama",
    "vllm.utils.cpu_triton_utils",
)
"""What the core imports on the CPU platform; on a device such modules may open it, after which no fork is possible."""


class DeviceOpenedError(RuntimeError):
    """An import opened the device, so that no engine can be forked any more."""


def preload() -> None:
    """Import everything. Raises `ImportError`, `DeviceOpenedError`. A second call is quick and changes nothing."""
    vllm_env.prepare()
    with _frozen_by_gc():
        for name in FRONT:
            importlib.import_module(name)
        _import_if_there(FRONT_LATER)
        from vllm.platforms import current_platform  # noqa: PLC0415 - after `prepare`

        if current_platform.is_cpu():
            _import_if_there(CPU_CORE_LATER)
    import torch  # noqa: PLC0415 - after `prepare`

    if torch.cuda.is_initialized():
        raise DeviceOpenedError(
            "an import has opened the CUDA device; start the engines without a zygote"
        )


def _import_if_there(names: tuple[str, ...]) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            # A module that is there and lacks something of its own is broken.
            if error.name is None or not name.startswith(error.name):
                raise


@contextmanager
def _frozen_by_gc() -> Iterator[None]:
    """Keep the garbage collector from the imported objects: a third of the importing time goes into visiting them again and again.

    Frozen ones are never visited later either, so forked processes go on sharing their pages, and full collections of an engine are short.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
