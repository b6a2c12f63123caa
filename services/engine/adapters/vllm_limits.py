"""What an engine with vLLM can take, as it tells gateways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import vllm

from services.engine.adapters import kv_config
from services.engine.adapters.vllm_steps import OURS
from services.engine.adapters.vllm_warmth import tells_blocks
from services.engine.ports import Limits
from services.engine.settings import KvSettings, VllmSettings


def limits_of(settings: VllmSettings, config: Any, kv: KvSettings, *, block_bytes: int) -> Limits:
    """Return what the engine can take, from its settings and what vLLM made of them."""
    return Limits(
        backend="vllm",
        model=settings.served_name or Path(settings.model).name,
        version=vllm.__version__,
        max_model_len=config.model_config.max_model_len,
        max_streams=config.scheduler_config.max_num_seqs,
        # One block of the pool is vLLM's own.
        total_blocks=config.cache_config.num_gpu_blocks - 1,
        block_tokens=config.cache_config.block_size,
        block_bytes=block_bytes,
        resumes=True,
        store=kv_config.store_name(kv),
        tells_blocks=tells_blocks(config) and config.scheduler_config.scheduler_cls in OURS,
    )
