"""Which JSON Schemas an engine looks at: bounds of size, for what walks over a schema before its grammar is tried out.

What a grammar takes to build nobody can tell from its schema (`grammar_check` tries it). What keywords mean is vLLM's to check.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from services.engine.ports import RefusedError
from shared.messages import RefuseReason

MAX_SCHEMA_BYTES = 64 << 10
MAX_DEPTH = 32
"""Levels of objects and lists in the schema's own JSON."""
MAX_NODES = 4096


def parsed_schema(schema_json: bytes, *, param: str) -> dict[str, Any]:
    """Return the schema. Raises `RefusedError` where it is none or too large."""
    if len(schema_json) > MAX_SCHEMA_BYTES:
        raise _refusal(
            f"the schema has {len(schema_json)} bytes, at most {MAX_SCHEMA_BYTES} are taken", param
        )
    try:
        schema = msgspec.json.decode(schema_json)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _refusal(f"the schema is not JSON: {error}", param) from error
    if not isinstance(schema, dict):
        raise _refusal("the schema must be an object", param)
    for nodes, depth in enumerate(_depths(schema), start=1):
        if depth > MAX_DEPTH:
            raise _refusal(f"the schema nests deeper than {MAX_DEPTH} levels", param)
        if nodes > MAX_NODES:
            raise _refusal(f"the schema has more than {MAX_NODES} parts", param)
    return schema


def _refusal(message: str, param: str) -> RefusedError:
    return RefusedError(RefuseReason.INVALID, message, param=param)


def _depths(root: Any) -> Iterator[int]:
    """Yield the depth of each value; no recursion, since nobody has checked the depth yet."""
    stack = [(1, root)]
    while stack:
        depth, value = stack.pop()
        yield depth
        if isinstance(value, dict):
            stack += [(depth + 1, child) for child in value.values()]
        elif isinstance(value, list):
            stack += [(depth + 1, child) for child in value]
