"""What a replica is made of, as a short hash; and how two specs differ, for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import xxhash

from shared.spec import model
from shared.spec.writing import to_document

_REPLICA_PARTS = (
    *(
        "modelRef",
        "resourceLimits",
        "kvTiers",
        "engine",
        "syncStrategy",
        "tensorParallelSync",
        "zone",
    ),
)
"""Keys of `spec` that need a new process where they change; all others take effect in running ones."""


def revision(spec: model.LLMService, fingerprint: str = "") -> str:
    """Return the revision of a spec: 12 hexadecimal digits, the same for two specs whose replicas are the same.

    `fingerprint`: of the model's files, where they are known; other files are another revision.
    """
    document = to_document(spec)
    body = document["spec"]
    assert isinstance(body, dict)
    parts = {key: body[key] for key in _REPLICA_PARTS if key in body}
    if "kvTiers" in parts:
        # Who may reuse what is decided at the gateway.
        parts["kvTiers"] = {k: v for k, v in parts["kvTiers"].items() if k != "shareAcross"}
    packed = msgspec.json.encode(
        {"name": spec.name, "spec": parts, "files": fingerprint}, order="sorted"
    )
    return xxhash.xxh3_64_hexdigest(packed)[:12]


def differences(old: model.LLMService | None, new: model.LLMService) -> list[str]:
    """Return what changes, a line each: `spec.scalingPolicy.maxReplicas: 2 → 4`."""
    before = dict(_leaves(to_document(old), "")) if old is not None else {}
    after = dict(_leaves(to_document(new), ""))
    lines = []
    for path in sorted({*before, *after}, key=lambda path: path.split(".")):
        if path not in before:
            lines.append(f"{path}: + {after[path]}")
        elif path not in after:
            lines.append(f"{path}: - {before[path]}")
        elif before[path] != after[path]:
            lines.append(f"{path}: {before[path]} → {after[path]}")
    return lines


def _leaves(value: object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]")
    else:
        yield path, msgspec.json.encode(value).decode()
