"""The smallest document that a simple JSON Schema accepts, and the smallest call of a tool.

Simple means: types, properties, items, enum, const and lower bounds. Anything that narrows further is refused, never guessed.
"""

from __future__ import annotations

import json
import math
from typing import Any

from shared.messages import ChatPrompt, Prompt

_NOTES = frozenset({"title", "description", "default", "examples", "$schema", "$id", "$comment"})
_ANY_KEYS = frozenset({"type", "enum", "const"}) | _NOTES
_KEYS_OF_TYPE: dict[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties", "maxProperties"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength"}),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum"}),
    "boolean": frozenset(),
    "null": frozenset(),
}
_MAX_DEPTH = 32
_MAX_UNITS = 4096


class NotSimpleError(Exception):
    """The schema uses what this module does not know."""


def smallest(schema_json: bytes) -> str:
    """Return the JSON text of a minimal valid document. Raises `NotSimpleError`."""
    try:
        schema = json.loads(schema_json)
    except ValueError as error:
        raise NotSimpleError(f"the schema is not JSON: {error}") from error
    return json.dumps(_value(schema, 0), ensure_ascii=False, separators=(",", ":"))


def called_tool(prompt: Prompt) -> tuple[str, str] | None:
    """Return name and arguments of the call that the prompt demands, if any. Raises `NotSimpleError`."""
    if not isinstance(prompt, ChatPrompt) or not prompt.tools_json:
        return None
    if prompt.tool_choice in ("none", "auto"):
        return None
    tools = {tool["function"]["name"]: tool["function"] for tool in json.loads(prompt.tools_json)}
    name = prompt.tool_choice.removeprefix("function:")
    name = next(iter(tools)) if prompt.tool_choice == "required" else name
    if name not in tools:
        raise NotSimpleError(f"tool_choice names {name!r}, which is not among the tools")
    return name, smallest(json.dumps(tools[name].get("parameters", {"type": "object"})).encode())


def _value(schema: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise NotSimpleError(f"the schema is nested deeper than {_MAX_DEPTH}")
    if schema is True:
        return None
    if not isinstance(schema, dict):
        raise NotSimpleError(f"{schema!r} is not a schema")
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    return _of_type(_type_of(schema), schema, depth)


def _type_of(schema: dict[str, Any]) -> str:
    """Return the schema's type once it holds nothing that we do not know."""
    named = schema.get("type", "object")
    kind = str(named[0] if isinstance(named, list) and named else named)
    if kind not in _KEYS_OF_TYPE:
        raise NotSimpleError(f"unknown type {kind!r}")
    unknown = schema.keys() - _ANY_KEYS - _KEYS_OF_TYPE[kind]
    if unknown:
        raise NotSimpleError(f"{sorted(unknown)} of {kind} schemas are unknown here")
    return kind


def _of_type(kind: str, schema: dict[str, Any], depth: int) -> Any:
    match kind:
        case "object":
            return _object(schema, depth)
        case "array":
            items = schema.get("items", True)
            return [_value(items, depth + 1) for _ in range(_units(schema, "minItems"))]
        case "string":
            return "x" * _units(schema, "minLength")
        case "integer" | "number":
            return _number(schema)
        case _:
            return True if kind == "boolean" else None


def _object(schema: dict[str, Any], depth: int) -> dict[str, Any]:
    properties = schema.get("properties", {})
    return {
        name: _value(properties.get(name, True), depth + 1) for name in schema.get("required", ())
    }


def _units(schema: dict[str, Any], key: str) -> int:
    count = int(schema.get(key, 0))
    if count > _MAX_UNITS:
        raise NotSimpleError(f"{key} is above {_MAX_UNITS}")
    return count


def _number(schema: dict[str, Any]) -> int:
    lowest = math.ceil(schema["minimum"]) if "minimum" in schema else None
    if "exclusiveMinimum" in schema:
        lowest = math.floor(schema["exclusiveMinimum"]) + 1
    value: int = 0 if lowest is None else max(0, lowest)
    value = min(value, math.floor(schema.get("maximum", value)))
    if lowest is not None and value < lowest:
        raise NotSimpleError(f"no whole number lies in the bounds of {schema!r}")
    return value
