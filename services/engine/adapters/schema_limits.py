"""Which JSON Schemas an engine takes: those whose grammar is built in seconds.

Grammars are built inside the engine core, where nothing can stop a build. The bounds are from tries with xgrammar 0.2 and a
vocabulary of 49k: 1,000 optional properties took 6 s, 64 patterns with `{1,200}` more than ten minutes, 256 properties 0.2 s.
Parts that are harmless one by one are not in numbers (100 strings with a maxLength of 1,000, four `.{0,32}x` in one pattern: minutes),
so what each takes is estimated and added up. What keywords mean is vLLM's to check.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from services.engine.ports import RefusedError
from shared.messages import RefuseReason

MAX_SCHEMA_BYTES = 64 << 10
MAX_DEPTH = 32
"""Levels of objects and lists in the schema's own JSON."""
MAX_NODES = 4096
MAX_PROPERTIES = 256
"""Of one object: the grammar of optional ones grows with the square."""
MAX_ENUM = 2048
MAX_COUNT = 8192
"""Of the keywords that count characters, items or properties."""
MAX_PATTERNS = 64
MAX_PATTERN_CHARS = 256
MAX_REPEAT = 128
"""Of one `{m,n}` in a pattern."""
MAX_REPEATS = 1024
"""Of all of them together."""

MAX_COST = 8192
"""Of all parts together, in about milliseconds on two slow cores."""
_PROPERTY_COST = 5
_FORMAT_COST = 70
_LENGTH_COST = 0.25
"""Of each character that a string's length is counted to."""
_NEW_LENGTH_COST = 50
_NEW_LENGTH_CHAR_COST = 4
_NEW_LENGTH_CHARS = 700
"""Of a length that no other string has: equal ones share most of what is built, and long ones share within themselves."""
_REPEAT_COST = 6
"""Of each time that a piece of a pattern is repeated."""
_STAR_COST = 40
"""Of each `*`, `+` and open `{m,}`."""

_NESTED_COST = 4
"""Of each way to combine repeats, where groups are repeated too."""

_COUNTS = frozenset(
    (
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "minContains",
        "maxContains",
    )
)
_REPEATED_GROUP = re.compile(r"\)[*+{]")
_LENGTHS = ("minLength", "maxLength")
_REPEAT = re.compile(r"\{(\d+)(?:(,)(\d*))?\}")


def parsed_schema(schema_json: bytes, *, param: str) -> dict[str, Any]:
    """Return the schema. Raises `RefusedError` where it is none or too large to be built."""
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
    if fault := _fault(schema):
        raise _refusal(f"the schema {fault}", param)
    return schema


def _refusal(message: str, param: str) -> RefusedError:
    return RefusedError(RefuseReason.INVALID, message, param=param)


def _fault(schema: dict[str, Any]) -> str | None:
    """Return what is too much, if anything."""
    patterns: list[str] = []
    lengths: set[float] = set()
    cost = 0.0
    for nodes, (depth, value) in enumerate(_walk(schema), start=1):
        if depth > MAX_DEPTH:
            return f"nests deeper than {MAX_DEPTH} levels"
        if nodes > MAX_NODES:
            return f"has more than {MAX_NODES} parts"
        if isinstance(value, dict):
            if fault := _object_fault(value):
                return fault
            patterns += _patterns(value)
            lengths.update(_lengths(value))
            cost += _object_cost(value)
    if fault := _pattern_fault(patterns):
        return fault
    cost += sum(map(_new_length_cost, lengths)) + sum(map(_pattern_cost, patterns))
    if cost > MAX_COST:
        return "would take too long to build: use fewer properties, formats, lengths and repeats in patterns"
    return None


def _walk(root: Any) -> Iterator[tuple[int, Any]]:
    """Yield each value with its depth; no recursion, since nobody has checked the depth yet."""
    stack = [(1, root)]
    while stack:
        depth, value = stack.pop()
        yield depth, value
        if isinstance(value, dict):
            stack += [(depth + 1, child) for child in value.values()]
        elif isinstance(value, list):
            stack += [(depth + 1, child) for child in value]


def _object_fault(value: dict[str, Any]) -> str | None:
    properties, members = value.get("properties"), value.get("enum")
    if isinstance(properties, dict) and len(properties) > MAX_PROPERTIES:
        return f"has an object of {len(properties)} properties, at most {MAX_PROPERTIES} are taken"
    if isinstance(members, list) and len(members) > MAX_ENUM:
        return f"has an enum of {len(members)} values, at most {MAX_ENUM} are taken"
    for key in _COUNTS & value.keys():
        count = value[key]
        if isinstance(count, int | float) and count > MAX_COUNT:
            return f"has a {key} above {MAX_COUNT}"
    return None


def _patterns(value: dict[str, Any]) -> list[str]:
    found = [value["pattern"]] if isinstance(value.get("pattern"), str) else []
    by_name = value.get("patternProperties")
    return found + (list(by_name) if isinstance(by_name, dict) else [])


def _pattern_fault(patterns: list[str]) -> str | None:
    if len(patterns) > MAX_PATTERNS:
        return f"has {len(patterns)} patterns, at most {MAX_PATTERNS} are taken"
    if any(len(pattern) > MAX_PATTERN_CHARS for pattern in patterns):
        return f"has a pattern of more than {MAX_PATTERN_CHARS} characters"
    repeats = [_repeat(match) for pattern in patterns for match in _REPEAT.finditer(pattern)]
    if max(repeats, default=0) > MAX_REPEAT or sum(repeats) > MAX_REPEATS:
        return f"has patterns that repeat more than {MAX_REPEAT} times, or {MAX_REPEATS} in all; use maxLength"
    return None


def _repeat(match: re.Match[str]) -> int:
    return max(_number(match[1]), _number(match[3] or "0"))


def _number(digits: str) -> int:
    # Numbers of hundreds of digits would be slow to read, and are too large anyway.
    return int(digits[:9])


def _object_cost(value: dict[str, Any]) -> float:
    properties = value.get("properties")
    return (
        (len(properties) * _PROPERTY_COST if isinstance(properties, dict) else 0)
        + (_FORMAT_COST if isinstance(value.get("format"), str) else 0)
        + max(_lengths(value), default=0) * _LENGTH_COST
    )


def _lengths(value: dict[str, Any]) -> list[float]:
    return [value[key] for key in _LENGTHS if isinstance(value.get(key), int | float)]


def _new_length_cost(length: float) -> float:
    return _NEW_LENGTH_COST + min(length, _NEW_LENGTH_CHARS) * _NEW_LENGTH_CHAR_COST


def _pattern_cost(pattern: str) -> float:
    """Return what a pattern takes: its repeats side by side, and the ways in which those of no fixed number can be combined."""
    cost, ways, longest = 0.0, 1, 0
    for match in _REPEAT.finditer(pattern):
        cost += _repeat(match) * _REPEAT_COST
        if not match[2]:
            longest = max(longest, _repeat(match))
        elif match[3]:
            ways *= 1 + max(0, _number(match[3]) - _number(match[1]))
        else:
            cost += _STAR_COST
    if _REPEATED_GROUP.search(pattern):
        ways *= (1 + longest) * _NESTED_COST
    return cost + ways + (pattern.count("*") + pattern.count("+")) * _STAR_COST
