"""Everything that decides about the bytes of a stored value, by name. Where one field differs, nothing is shared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vllm.v1.kv_offload.config import OffloadingConfig

from shared.models.fingerprint import fingerprint

FORMAT = "1"
"""Counts up when we store the same blocks in another way."""


def fields_of(
    config: OffloadingConfig, told: Mapping[str, str], *, value_bytes: int
) -> dict[str, str]:
    """Return the fields. Reads all of the model's files, which takes as long as the disk needs. Raises `OSError`, `ValueError`."""
    parallel = config.parallel
    shape = {
        name: str(getattr(parallel, name))
        for name in ("world_size", "tp_size", "pp_size", "pcp_size", "dcp_size")
    }
    groups = [
        f"{group.group_id}:{group.tokens_per_block}:{','.join(group.layer_names)}"
        for group in config.groups
    ]
    return {
        **told,
        **shape,
        "format": FORMAT,
        "model": fingerprint(Path(config.model.name)),
        "dtype": config.model.dtype,
        "layout": f"{config.kv_cache_layout}/{config.canonical_layout}/{config.replicated_layout}",
        "tokens_per_hash": str(config.cache.tokens_per_hash),
        "blocks_per_chunk": str(config.cache.blocks_per_chunk),
        "groups": ";".join(groups),
        "value_bytes": str(value_bytes),
    }
