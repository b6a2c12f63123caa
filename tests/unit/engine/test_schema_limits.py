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


def wide(count: int) -> dict:
    return {"properties": {f"p{number}": {} for number in range(count)}}


def patterns(count: int, pattern: str = "^a+$") -> dict:
    return {"properties": {f"p{number}": {"pattern": pattern} for number in range(count)}}


def strings(count: int, **keywords: object) -> dict:
    return {"prefixItems": [{"type": "string", **keywords}] * count}


def lengths(count: int, least: int) -> dict:
    return {"properties": {f"p{n}": {"maxLength": least + n} for n in range(count)}}


AT_BOUND = [
    {},
    nested(limits.MAX_DEPTH),
    wide(limits.MAX_PROPERTIES),
    {"enum": list(range(limits.MAX_ENUM))},
    {"maxLength": limits.MAX_COUNT},
    {"properties": {"maxLength": {"type": "string"}}},
    patterns(limits.MAX_PATTERNS),
    {"pattern": "a" * limits.MAX_PATTERN_CHARS},
    {"pattern": f"^a{{1,{limits.MAX_REPEAT}}}$"},
    patterns(limits.MAX_REPEATS // limits.MAX_REPEAT, f"a{{{limits.MAX_REPEAT}}}"),
    {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    {"anyOf": [wide(limits.MAX_PROPERTIES)] * 6},
    strings(250, maxLength=100),
    lengths(10, 100),
    lengths(2, 4000),
    strings(100, format="date-time"),
    patterns(30, r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"),
    {"pattern": r"^\\+?\\d{1,3}[-. ]?\\d{1,4}[-. ]?\\d{1,9}$"},
]

BEYOND = [
    (nested(limits.MAX_DEPTH + 1), "nests deeper"),
    ({"anyOf": [{"enum": list(range(2000))} for _ in range(3)]}, "parts"),
    (wide(limits.MAX_PROPERTIES + 1), "properties"),
    ({"enum": list(range(limits.MAX_ENUM + 1))}, "enum"),
    ({"items": {"maxItems": limits.MAX_COUNT + 1}}, "maxItems"),
    ({"minLength": 1e300}, "minLength"),
    (patterns(limits.MAX_PATTERNS + 1), "patterns"),
    ({"patternProperties": {"a" * (limits.MAX_PATTERN_CHARS + 1): {}}}, "pattern"),
    ({"pattern": f"a{{{limits.MAX_REPEAT + 1}}}"}, "repeat"),
    ({"pattern": f"a{{2,{'9' * 200}}}"}, "repeat"),
    ({"anyOf": [wide(limits.MAX_PROPERTIES)] * 7}, "too long"),
    (strings(100, maxLength=1000), "too long"),
    (lengths(20, 100), "too long"),
    (lengths(3, 4000), "too long"),
    (strings(200, format="uri"), "too long"),
    (patterns(8, ".*" + "[a-z]+" * 30), "too long"),
    ({"pattern": "^" + ".{0,32}x" * 4 + "$"}, "too long"),
    ({"pattern": "^(.{50}x){0,50}$"}, "too long"),
    ({"pattern": "^(([a-z]{0,20}x){0,20}y){0,20}$"}, "too long"),
    (patterns(limits.MAX_REPEATS // limits.MAX_REPEAT + 1, f"a{{{limits.MAX_REPEAT}}}"), "repeat"),
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
