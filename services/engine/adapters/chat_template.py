"""A model's chat template: messages in, text out.

Renders as transformers does (same sandbox, filters and globals; a test compares them) and prepares messages as vLLM does,
without importing either: the worker process that does this must start in a moment.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from typing import Any, Literal

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
from typing_extensions import override

ContentFormat = Literal["string", "openai"]
"""What a template takes as content of a message: text, or a list of parts."""


class TemplateRefusal(ValueError):
    """The template itself refuses the messages; its words are for the client."""


class ChatTemplate:
    """A compiled template."""

    def __init__(
        self, source: str, *, variables: dict[str, Any], content_format: ContentFormat
    ) -> None:
        environment = _environment()
        self._template = environment.from_string(source)
        self._variables = variables
        self._content_format = content_format

    def render(self, messages: list[Any], tools: list[Any] | None) -> str:
        """Return the prompt text, ready for the answer to follow. Raises `TemplateRefusal`, and whatever the template breaks on."""
        return self._template.render(
            messages=messages,
            tools=tools,
            documents=None,
            add_generation_prompt=True,
            **self._variables,
        )

    def prepared(self, messages: list[Any]) -> list[Any]:
        """Return the messages in the shape that templates expect."""
        return [self._prepared(message) for message in messages]

    def _prepared(self, message: dict[str, Any]) -> dict[str, Any]:
        content = message.get("content") or ""
        if self._content_format == "openai" and message["role"] != "tool":
            content = [{"type": "text", "text": content}] if content else []
        prepared = {**message, "content": content}
        if calls := message.get("tool_calls"):
            prepared["tool_calls"] = [_with_object(call) for call in calls]
        return prepared


def reads_tools(source: str) -> bool:
    """Whether the template looks at `tools` at all. Raises `jinja2.TemplateError`."""
    names = _environment().parse(source).find_all(jinja2.nodes.Name)
    return any(name.name == "tools" and name.ctx == "load" for name in names)


def _with_object(call: dict[str, Any]) -> dict[str, Any]:
    """Return a tool call with its arguments as an object; text that is none becomes an empty one.

    Refusing it would make a conversation in which the model once wrote bad JSON impossible to go on with.
    """
    function = call["function"]
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except ValueError:
        arguments = {}
    if not isinstance(arguments, dict):
        arguments = {}
    return {**call, "function": {**function, "arguments": arguments}}


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what the assistant said, for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - jinja's way of declaring a tag

    @override
    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_pass")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _pass(self, caller: Callable[[], str]) -> str:
        return caller()


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Dump without escaping HTML, unlike jinja's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: str) -> None:
    raise TemplateRefusal(message)


def _now(text_format: str) -> str:
    return datetime.datetime.now().strftime(text_format)  # noqa: DTZ005 - local time, as transformers gives it
