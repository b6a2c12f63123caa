"""Schemas are taken up to the bounds, and refused by name beyond each of them."""

from __future__ import annotations

import json

import pytest

from services.engine.adapters import schema_limits as limits
from services.engine.adapters.schema_limits import parsed_schema
from services.engine.ports import RefusedError
from shared.messages import RefuseReason


def nested(depth: int) -> dict:
    """Return a schema whose JSON has `depth` levels."""
    schema: dict = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


def wide(parts: int) -> dict:
    """Return a schema of so many parts: itself, the object of properties, and they."""
    return {"properties": {f"p{number}": {} for number in range(parts - 2)}}


AT_BOUND = [{}, nested(limits.MAX_DEPTH), wide(limits.MAX_NODES)]
BEYOND = [
    (nested(limits.MAX_DEPTH + 1), "nests deeper"),
    (wide(limits.MAX_NODES + 1), "parts"),
]


@pytest.mark.parametrize("schema", AT_BOUND)
def test_a_schema_at_a_bound_is_taken(schema):
    assert schema == parsed_schema(json.dumps(schema).encode(), param="tools")


@pytest.mark.parametrize(("schema", "says"), BEYOND)
def test_a_schema_beyond_a_bound_is_refused(schema, says):
    with pytest.raises(RefusedError, match=says) as caught:
        parsed_schema(json.dumps(schema).encode(), param="response_format")

    assert (RefuseReason.INVALID, "response_format") == (caught.value.reason, caught.value.param)


@pytest.mark.parametrize("text", [b"", b"nonsense", b"[]", b"true", b'"x"', b"[" * 100_000])
def test_what_is_no_object_is_refused(text):
    with pytest.raises(RefusedError):
        parsed_schema(text, param="tools")


def test_an_endless_schema_is_not_even_read():
    text = b'{"description": "' + b"x" * limits.MAX_SCHEMA_BYTES + b'"}'

    with pytest.raises(RefusedError, match="bytes"):
        parsed_schema(text, param="tools")
