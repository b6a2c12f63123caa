"""The service that `headrace up` declares: its options as an `LLMService`. Pure."""

from __future__ import annotations

import re

from services.console.fleet.plan import UpOptions
from shared.errors import UserError
from shared.ids import ServiceName
from shared.spec.footprint import memory_needed
from shared.spec.model import (
    GIB,
    EngineSpec,
    KvTiers,
    LLMService,
    Metadata,
    ModelRef,
    ScalingPolicy,
)
from shared.spec.reading import from_document
from shared.spec.writing import to_document

MAX_REPLICAS = 8
"""How far `headrace scale` may go, where `--engines` is not more."""


def service_name(model: str) -> str:
    """Return a model's name as a service's: dots and the like cannot be in a NATS subject (`Qwen2.5-0.5B` → `Qwen2-5-0-5B`)."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", model).strip("-") or "model"


def service_of(options: UpOptions) -> LLMService:
    """Return the service. Raises `UserError` where the options make none that could be applied."""
    backend = options.backend
    made = options.model.rstrip("/").rpartition("/")[2] if backend == "vllm" else backend
    spec = LLMService(
        metadata=Metadata(name=ServiceName(options.service or service_name(made))),
        model=ModelRef(name=options.model if backend == "vllm" else backend),
        scaling=ScalingPolicy(min_replicas=1, max_replicas=max(options.engines, MAX_REPLICAS)),
        kv=KvTiers(
            pool_bytes=options.kv_cache_bytes,
            host_bytes=options.kv_host_bytes,
            disk=options.has_kv_store,
            min_tokens=options.kv_min_tokens,
        ),
        engine=EngineSpec(
            backend=backend,
            url=options.upstream,
            max_model_len=options.max_model_len,
            settings=options.engine_settings,
        ),
    )
    return from_document(to_document(spec))  # so that what it refuses is said now


def check_memory(
    spec: LLMService, *, engines: int, weight_bytes: int, available_bytes: int
) -> None:
    """Raise `UserError`, with the numbers and what to change, where the engines cannot fit."""
    each = memory_needed(spec, weight_bytes=weight_bytes)
    if engines * each <= available_bytes:
        return
    blocks = spec.kv.pool_bytes + spec.kv.host_bytes
    raise UserError(
        f"{engines} engine(s) need about {engines * each / GIB:.1f} GiB ({2 * weight_bytes / GIB:.1f} weights + "
        f"{blocks / GIB:.1f} KV blocks + {(each - 2 * weight_bytes - blocks) / GIB:.1f} each), "
        f"{available_bytes / GIB:.1f} GiB are free",
        hint="fewer --engines, or a smaller --kv-cache or --kv-host",
    )
