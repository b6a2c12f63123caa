"""The shape that an answer must have: free text, JSON, or tool calls; what of it is a grammar for vLLM, and who reads the text."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from vllm.sampling_params import StructuredOutputsParams

from services.engine.adapters.schema_limits import parsed_schema
from services.engine.adapters.tool_calls import Listener, forced_calls
from services.engine.adapters.vllm_tools import ToolParser
from services.engine.ports import Job, RefusedError
from shared.messages import ChatPrompt, RefuseReason


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """How to generate and to read an answer."""

    grammar: StructuredOutputsParams | None = None
    param: str | None = None
    """The field that the grammar comes from."""
    new_listener: Callable[[], Listener] | None = None
    """Makes who looks for tool calls in a choice; none: all is text."""
    skip_special_tokens: bool = True


def shape_of(job: Job, tool_parser: ToolParser | None, *, shows_tools: bool) -> Shape:
    """Return the shape that a job asks for; `shows_tools`: the model's template does. Raises `RefusedError`."""
    calls = None
    if isinstance(job.prompt, ChatPrompt):
        calls = _calls(job.prompt, tool_parser, shows_tools=shows_tools)
    json = _json(job)
    if calls is not None and json is not None:
        raise RefusedError(
            RefuseReason.UNSUPPORTED,
            "response_format can't be combined with tools that may be called; leave one out, or set tool_choice to none",
            param="response_format",
        )
    return calls or json or Shape()


def _json(job: Job) -> Shape | None:
    sampling = job.sampling
    if sampling.json_schema is not None:
        parsed_schema(sampling.json_schema, param="response_format")
        grammar = StructuredOutputsParams(json=sampling.json_schema.decode())
    elif sampling.json_object:
        grammar = StructuredOutputsParams(json_object=True)
    else:
        return None
    return Shape(grammar=grammar, param="response_format")


def _calls(
    prompt: ChatPrompt, tool_parser: ToolParser | None, *, shows_tools: bool
) -> Shape | None:
    if forced := forced_calls(prompt):
        grammar = StructuredOutputsParams(json=forced.schema.decode())
        return Shape(grammar=grammar, param="tools", new_listener=forced.listener)
    if prompt.tools_json is None or prompt.tool_choice == "none":
        return None
    if not shows_tools:
        raise RefusedError(
            RefuseReason.UNSUPPORTED,
            "the model's chat template has no tools: use tool_choice required, or a function's name",
            param="tools",
        )
    if tool_parser is None:
        raise RefusedError(
            RefuseReason.UNSUPPORTED,
            "tool_choice auto needs the engine's setting vllm.tool_call_parser; without it use required, or a function's name",
            param="tool_choice",
        )
    chosen = tool_parser.chosen(prompt)
    return Shape(
        grammar=chosen.structured,
        param="tools",
        new_listener=chosen.listener,
        skip_special_tokens=chosen.skip_special_tokens,
    )
