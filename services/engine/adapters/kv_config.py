"""From an engine's KV settings to vLLM's: which connector, which spec, and what the store must know of the bytes.

What is settled when vLLM's configuration is made is told here (`told_of`); what only the scheduler knows is added in `kv_namespace`.
"""

from __future__ import annotations

import platform
from typing import Any

import msgspec
import torch
import vllm
from vllm.config import VllmConfig
from vllm.platforms import current_platform

from services.engine.adapters import kv_connector, kv_region, kv_spec
from services.engine.ports import EngineFailedError
from services.engine.settings import KvSettings
from shared.boot import boot_id
from shared.kv import namespace

TIER = "StoreTier"
TIER_MODULE = "services.engine.adapters.kv_tier"


def check(kv: KvSettings) -> None:
    """Raise `EngineFailedError` where the settings do not fit together."""
    if kv.store and not kv.host_bytes:
        raise EngineFailedError(
            "kv.store needs kv.host_bytes: what comes from disk comes through it"
        )
    for name in ("load_share", "save_share"):
        if not 0 < getattr(kv, name) <= 1:
            raise EngineFailedError(f"kv.{name} is a share of L2: above 0, at most 1")
    for name in ("load_s", "load_bytes_per_s", "drain_s"):
        if not getattr(kv, name) > 0:
            raise EngineFailedError(f"kv.{name} must be above 0")
    for name in ("host_bytes", "min_tokens", "seen_blocks"):
        if getattr(kv, name) < 0:
            raise EngineFailedError(f"kv.{name} must not be below 0")


def store_name(kv: KvSettings) -> str:
    """Return what gateways call the store: the same for all engines that reach it at the same place of the same host."""
    return namespace.digest({"boot": boot_id(), "socket": kv.store}) if kv.store else ""


def transfer_args(kv: KvSettings) -> dict[str, Any]:
    """Return the arguments of vLLM that bring the tiers; none where there are none. Raises `EngineFailedError`."""
    check(kv)
    if not kv.host_bytes:
        return {}
    if (free := kv_region.free_bytes()) < kv.host_bytes:
        raise EngineFailedError(
            f"kv.host_bytes is {kv.host_bytes}, and {kv_region.FOLDER} has {free} bytes free;"
            " set less, or give a container more with --shm-size"
        )
    extra: dict[str, Any] = {
        "spec_name": kv_spec.NAME,
        "spec_module_path": kv_spec.MODULE,
        "cpu_bytes_to_use": kv.host_bytes,
        "offload_prompt_only": not kv.generated,
    }
    if kv.store:
        extra["secondary_tiers"] = [
            {"type": TIER, "module_path": TIER_MODULE, "settings": msgspec.to_builtins(kv)}
        ]
    return {
        "kv_transfer_config": {
            "kv_connector": kv_connector.NAME,
            "kv_connector_module_path": kv_connector.MODULE,
            "kv_role": "kv_both",
            "engine_id": kv_region.new_engine_id(),
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": extra,
        },
        # The same in each process and version of Python: what was stored is found again after a restart.
        "prefix_caching_hash_algo": "sha256_cbor",
    }


def tell(config: VllmConfig) -> None:
    """Add to our tier's settings what decides about the bytes of a block, as far as the configuration says."""
    transfer = config.kv_transfer_config
    if transfer is None:
        return
    for tier in transfer.kv_connector_extra_config.get("secondary_tiers", ()):
        if tier.get("type") == TIER:
            tier["told"] = told_of(config)


def told_of(config: VllmConfig) -> dict[str, str]:
    """Return the fields by name."""
    model = config.model_config
    return {
        "vllm": vllm.__version__,
        "model_config": model.compute_hash(),
        "overrides": repr(model.hf_overrides),
        "attention": str(config.attention_config.backend),
        "speculation": config.speculative_config.compute_hash()
        if config.speculative_config
        else "",
        "isa": _isa(),
    }


def _isa() -> str:
    """Return what computes: another instruction set or device rounds otherwise, and may store blocks in another order."""
    if not current_platform.is_cpu():
        return f"{current_platform.device_type}/{current_platform.get_device_name()}"
    has_tiles = platform.machine() == "x86_64" and torch.cpu._is_amx_tile_supported()  # noqa: SLF001 - torch has no other question
    return f"{platform.machine()}/{torch.backends.cpu.get_cpu_capability()}{'/amx' * has_tiles}"
