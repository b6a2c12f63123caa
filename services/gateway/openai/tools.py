"""Functions that the model may call, and which of them it must."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from services.gateway.call import invalid
from services.gateway.openai.limits import RequestLimits

FunctionName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$(?!\n)")]
"""OpenAI's; `$` alone would let a line break through."""

Schema = dict[str, Any]
"""A JSON Schema; which keywords it may use is the engine's to say."""

_encode = msgspec.json.Encoder().encode


class Function(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A function that the model may call; `parameters` is the JSON Schema of its arguments."""

    name: FunctionName
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class Tool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool of the only type there is."""

    type: Literal["function"]
    function: Function


class FunctionRef(Struct, frozen=True, forbid_unknown_fields=True):
    """A function by name."""

    name: FunctionName


class NamedTool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The one tool that must be called."""

    type: Literal["function"]
    function: FunctionRef


ToolChoice = Literal["none", "auto", "required"] | NamedTool


def tools_json(tools: list[Tool], limits: RequestLimits) -> bytes:
    """Check a non-empty list of tools and return its canonical JSON, without nulls."""
    if len(tools) > limits.max_tools:
        raise invalid(
            f"`tools` has {len(tools)} entries; at most {limits.max_tools}.", param="tools"
        )
    encoded = _encode(tools)
    check_bytes(encoded, limits.max_tools_bytes, param="tools")
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        path = f"tools[{index}].function"
        if tool.function.name in seen:
            raise invalid(f"`{path}.name` is used twice.", param=f"{path}.name")
        seen.add(tool.function.name)
        check_depth(tool.function.parameters, limits, param=f"{path}.parameters")
    return encoded


def choice_text(choice: ToolChoice | None, tools: list[Tool]) -> str:
    """Return `ChatPrompt.tool_choice`; a named function must be among the tools."""
    if choice is None or choice == "none":
        # Without tools there is nothing to choose, which is what `none` says.
        return choice or "auto"
    if not tools:
        raise invalid("`tool_choice` is only allowed with `tools`.", param="tool_choice")
    if isinstance(choice, str):
        return choice
    name = choice.function.name
    if all(tool.function.name != name for tool in tools):
        raise invalid(
            f"`tool_choice` names `{name}`, which is not in `tools`.", param="tool_choice"
        )
    return f"function:{name}"


def check_schema(schema: Schema, limits: RequestLimits, bound: int, *, param: str) -> bytes:
    """Return a schema's JSON; its size is checked first, since looking into millions of parts takes seconds."""
    encoded = _encode(schema)
    check_bytes(encoded, bound, param=param)
    check_depth(schema, limits, param=param)
    return encoded


def check_bytes(encoded: bytes, bound: int, *, param: str) -> None:
    """Refuse JSON that is too large."""
    if len(encoded) > bound:
        raise invalid(f"`{param}` has {len(encoded)} bytes; at most {bound}.", param=param)


def check_depth(schema: Schema | None, limits: RequestLimits, *, param: str) -> None:
    """Refuse a schema that nests deeper than the engines' grammars and our own recursion allow."""
    level: list[Any] = [schema]
    for _ in range(limits.max_schema_depth):
        level = [child for value in level for child in _containers_in(value)]
        if not level:
            return
    raise invalid(
        f"`{param}` nests deeper than {limits.max_schema_depth} levels; flatten it.", param=param
    )


def _containers_in(value: Any) -> list[Any]:
    children = value.values() if isinstance(value, dict) else value or ()
    return [child for child in children if isinstance(child, dict | list)]
