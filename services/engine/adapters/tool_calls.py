"""Tool calls that a grammar forces: the schema that the answer must match, and the calls in the text as it comes.

`function:NAME` makes the whole answer the arguments of that function; `required` a list of `{"name", "parameters"}`.
Both work on any model, since the grammar carries names and parameters. What a model does of its own will is `vllm_tools`' part.
"""

from __future__ import annotations

import re
import secrets
from typing import Any, Protocol

import msgspec

from services.engine.adapters.schema_limits import parsed_schema
from services.engine.ports import RefusedError
from shared.messages import ChatPrompt, RefuseReason, ToolCallDelta

_NAMED = "function:"
_ANYTHING = {"type": "object"}
_CALL_BEGIN = re.compile(r'"name"\s*:\s*"([^"\\]*)"\s*,\s*"parameters"\s*:\s*(?=\S)')


class Said(msgspec.Struct, frozen=True):
    """What a piece of text comes to."""

    content: str
    calls: list[ToolCallDelta]


class Listener(Protocol):
    """Takes the text of one choice, finds the tool calls in it."""

    def hear(self, text: str, token_ids: list[int], *, is_last: bool) -> Said:
        """Take the next piece, return what is known by now. Keeps what may still become a call."""
        ...


class ForcedCalls(msgspec.Struct, frozen=True):
    """What `tool_choice` forces."""

    schema: bytes
    name: str | None
    """The one function; none: any of them, any number of times."""

    def listener(self) -> Listener:
        """Return one for a choice."""
        return NamedCall(self.name) if self.name is not None else CallList()


def forced_calls(prompt: ChatPrompt) -> ForcedCalls | None:
    """Return what the choice of tools forces, if anything. Raises `RefusedError`."""
    choice = prompt.tool_choice
    if choice != "required" and not choice.startswith(_NAMED):
        return None
    functions = _functions(prompt.tools_json)
    if choice == "required":
        schema = _any_of(functions, is_single=not prompt.parallel_tool_calls)
        return ForcedCalls(_checked(schema), None)
    name = choice.removeprefix(_NAMED)
    if name not in functions:
        raise RefusedError(
            RefuseReason.INVALID,
            f"tool_choice names {name!r}, which is not among the tools",
            param="tool_choice",
        )
    return ForcedCalls(_checked(functions[name]), name)


def new_call_id() -> str:
    """Return an id for a call."""
    return f"call_{secrets.token_hex(12)}"


def _functions(tools_json: bytes | None) -> dict[str, dict[str, Any]]:
    """Return the parameters of each function."""
    try:
        tools = [tool["function"] for tool in msgspec.json.decode(tools_json or b"[]")]
        functions = {tool["name"]: tool.get("parameters") or _ANYTHING for tool in tools}
    except (msgspec.DecodeError, TypeError, KeyError) as error:
        raise RefusedError(
            RefuseReason.INVALID, "tools is no list of functions", param="tools"
        ) from error
    if not functions:
        raise RefusedError(
            RefuseReason.INVALID,
            "tool_choice wants a call, there are no tools",
            param="tool_choice",
        )
    return functions


def _any_of(functions: dict[str, dict[str, Any]], *, is_single: bool) -> dict[str, Any]:
    shared: dict[str, Any] = {}
    calls = [_call(name, parameters, shared) for name, parameters in functions.items()]
    schema: dict[str, Any] = {"type": "array", "items": {"anyOf": calls}, "minItems": 1}
    if is_single:
        schema["maxItems"] = 1
    # References are from the root of a schema, so definitions move there.
    return schema | ({"$defs": shared} if shared else {})


def _call(name: str, parameters: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any]:
    own = dict(parameters)
    for title, definition in own.pop("$defs", {}).items():
        if shared.setdefault(title, definition) != definition:
            raise RefusedError(
                RefuseReason.INVALID,
                f"two tools define $defs/{title} differently; rename one",
                param="tools",
            )
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "parameters": own},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _checked(schema: dict[str, Any]) -> bytes:
    schema_json = msgspec.json.encode(schema)
    parsed_schema(schema_json, param="tools")
    return schema_json


class NamedCall:
    """The whole text is the arguments of one call."""

    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def hear(self, text: str, token_ids: list[int], *, is_last: bool) -> Said:
        """Pass the text on as arguments; the first piece names the call."""
        del token_ids, is_last
        if self._name is None:
            return Said("", [ToolCallDelta(index=0, arguments=text)] if text else [])
        name, self._name = self._name, None
        return Said("", [ToolCallDelta(index=0, id=new_call_id(), name=name, arguments=text)])


class CallList:
    """The text is `[{"name": …, "parameters": …}, …]`, in this order, since the grammar wants it so."""

    def __init__(self) -> None:
        self._index = -1
        self._pending = ""
        self._value: _JsonValue | None = None

    def hear(self, text: str, token_ids: list[int], *, is_last: bool) -> Said:
        """Return the calls, or parts of them, in this text."""
        del token_ids, is_last
        self._pending += text
        calls: list[ToolCallDelta] = []
        while delta := self._next():
            calls.append(delta)
        return Said("", calls)

    def _next(self) -> ToolCallDelta | None:
        if self._value is not None:
            return self._arguments(ToolCallDelta(index=self._index))
        begin = _CALL_BEGIN.search(self._pending)
        if begin is None:
            return None
        self._pending = self._pending[begin.end() :]
        self._index += 1
        self._value = _JsonValue()
        return self._arguments(ToolCallDelta(index=self._index, id=new_call_id(), name=begin[1]))

    def _arguments(self, delta: ToolCallDelta) -> ToolCallDelta | None:
        """Add the part of the arguments that has come, if any."""
        assert self._value is not None
        size, is_over = self._value.measure(self._pending)
        arguments, self._pending = self._pending[:size], self._pending[size:]
        if is_over:
            self._value = None
        if not arguments and delta.id is None:
            return self._next() if is_over else None
        return msgspec.structs.replace(delta, arguments=arguments)


class _JsonValue:
    """Finds the end of a JSON value that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._is_scalar = False

    def measure(self, text: str) -> tuple[int, bool]:
        """Return how many characters of the text belong to the value, and whether it ends there."""
        for index, char in enumerate(text):
            if self._in_string:
                if self._ends_string(char) and self._depth == 0:
                    return index + 1, True
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif self._depth == 0 and char in ",}] \n\t\r":
                return index, True
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return index + 1, True
        return len(text), False

    def _ends_string(self, char: str) -> bool:
        if self._is_escaped:
            self._is_escaped = False
        elif char == "\\":
            self._is_escaped = True
        elif char == '"':
            self._in_string = False
            return True
        return False
