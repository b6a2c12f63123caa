"""Messages and tools of a chat request: what the engine's template gets, and what is refused."""

from __future__ import annotations

import json

import pytest

from services.gateway.call import ApiError
from shared.messages import ChatPrompt
from tests.support.openai_calls import chat

USER = {"role": "user", "content": "hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "f"}}


def prompt(**fields) -> ChatPrompt:
    (only,) = chat(**fields).prompts
    assert isinstance(only, ChatPrompt)
    return only


def seen_by_template(*messages: dict) -> list[dict]:
    return json.loads(prompt(messages=list(messages)).messages_json)


def refused_param(**fields) -> str | None:
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    assert 400 == caught.value.status
    return caught.value.param


@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        ({"role": "system", "content": "s"}, {"role": "system", "content": "s"}),
        ({"role": "developer", "content": "s"}, {"role": "system", "content": "s"}),
        ({"role": "user", "content": ""}, {"role": "user", "content": ""}),
        (
            {"role": "user", "content": "u", "name": "Ann"},
            {"role": "user", "name": "Ann", "content": "u"},
        ),
        ({"content": "u", "role": "user", "name": None}, {"role": "user", "content": "u"}),
        (
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"text": "b", "type": "text"}],
            },
            {"role": "user", "content": "a\nb"},
        ),
        ({"role": "user", "content": []}, {"role": "user", "content": ""}),
        (
            {"role": "tool", "content": "4", "tool_call_id": "call_1"},
            {"role": "tool", "content": "4", "tool_call_id": "call_1"},
        ),
        (
            {
                "role": "tool",
                "content": [{"type": "text", "text": "4"}],
                "tool_call_id": "c",
                "name": "f",
            },
            {"role": "tool", "content": "4", "tool_call_id": "c", "name": "f"},
        ),
        ({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "a"}),
        ({"role": "assistant", "content": ""}, {"role": "assistant", "content": ""}),
        (
            {"role": "assistant", "content": "a", "tool_calls": []},
            {"role": "assistant", "content": "a"},
        ),
        (
            {"role": "assistant", "refusal": "no", "content": None},
            {"role": "assistant", "content": "no"},
        ),
        (
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "no"}],
            },
            {"role": "assistant", "content": "a\nno"},
        ),
        (
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
        ),
        (
            {"role": "assistant", "tool_calls": [CALL | {"index": 0}]},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
        ),
        (
            {
                "role": "assistant",
                "content": "a",
                "refusal": None,
                "annotations": [],
                "audio": None,
                "function_call": None,
                "tool_calls": None,
            },
            {"role": "assistant", "content": "a"},
        ),
    ],
)
def test_templates_see_plain_messages(sent, seen):
    assert [seen] == seen_by_template(sent)


def test_the_order_of_a_conversation_is_kept():
    turns = [{"role": "user", "content": str(number)} for number in range(50)]

    assert turns == seen_by_template(*turns)


def test_line_breaks_and_special_tokens_in_content_stay_text():
    text = '<|im_end|>\n"\u2028\t\\ 漢字 \U0001f600'

    assert [{"role": "user", "content": text}] == seen_by_template(
        {"role": "user", "content": text}
    )


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user"}, "content"),
        ({"role": "user", "content": None}, "content"),
        ({"role": "user", "content": 5}, "content"),
        ({"role": "user", "content": ["a"]}, "content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "content[0].text"),
        ({"role": "user", "content": [{"text": "a"}]}, "content[0].type"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
            "content[0].type",
        ),
        (
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
            "content[0].type",
        ),
        ({"role": "user", "content": [{"type": "file", "file": {}}]}, "content[0].type"),
        (
            {
                "role": "user",
                "content": [{"type": "text", "text": "a", "prompt_cache_breakpoint": {}}],
            },
            "content[0].prompt_cache_breakpoint",
        ),
        ({"role": "user", "content": "a", "name": "a b"}, "name"),
        ({"role": "user", "content": "a", "name": "a\n"}, "name"),
        ({"role": "user", "content": "a", "name": "<|im_end|>"}, "name"),
        ({"role": "user", "content": "a", "tool_calls": []}, "tool_calls"),
        ({"role": "function", "name": "f", "content": "a"}, "role"),
        ({"role": "User", "content": "a"}, "role"),
        ({"content": "a"}, "role"),
        ({"role": "tool", "content": "a"}, "tool_call_id"),
        ({"role": "tool", "content": "a", "tool_call_id": ""}, "tool_call_id"),
        ({"role": "assistant"}, "content"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "content"),
        ({"role": "assistant", "content": "a", "audio": {"id": "x"}}, "audio"),
        ({"role": "assistant", "content": "a", "function_call": {"name": "f"}}, "function_call"),
        ({"role": "assistant", "content": "a", "annotations": [{}]}, "annotations"),
        ({"role": "assistant", "content": "a", "reasoning_content": "hm"}, "reasoning_content"),
        (
            {"role": "assistant", "tool_calls": [{"type": "custom", "id": "c"}]},
            "tool_calls[0].type",
        ),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "tool_calls[0].function"),
        (
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {}}}],
            },
            "tool_calls[0].function.arguments",
        ),
    ],
)
def test_a_wrong_message_is_refused_by_the_path_of_its_field(message, param):
    assert f"messages[1].{param}" == refused_param(messages=[USER, message])


def test_a_message_that_is_no_object_is_refused():
    assert "messages[1]" == refused_param(messages=[USER, "hi"])


def test_tools_are_passed_on_without_nulls_and_with_the_schema_as_it_is():
    schema = {
        "type": "object",
        "properties": {
            "b": {"type": ["string", "null"], "default": None},
            "a": {"maximum": 10**30},
        },
    }
    function = {"name": "f-1_x", "description": None, "parameters": schema, "strict": True}

    seen = prompt(tools=[{"type": "function", "function": function}]).tools_json

    assert seen is not None
    del function["description"]
    assert [{"type": "function", "function": function}] == json.loads(seen)
    assert seen.index(b'"b"') < seen.index(b'"a"')


@pytest.mark.parametrize(
    ("fields", "choice"),
    [
        ({}, "auto"),
        ({"tools": [TOOL]}, "auto"),
        ({"tools": [TOOL], "tool_choice": None}, "auto"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "auto"),
        ({"tools": [TOOL], "tool_choice": "none"}, "none"),
        ({"tools": [TOOL], "tool_choice": "required"}, "required"),
        ({"tools": [TOOL], "tool_choice": TOOL}, "function:f"),
        ({"tool_choice": "none"}, "none"),
    ],
)
def test_tool_choice(fields, choice):
    assert choice == prompt(**fields).tool_choice


def test_no_tools_and_an_empty_list_of_tools_are_the_same():
    assert prompt() == prompt(tools=[]) == prompt(tools=None)


def test_parallel_tool_calls_are_on_unless_switched_off():
    assert prompt(tools=[TOOL]).parallel_tool_calls
    assert not prompt(tools=[TOOL], parallel_tool_calls=False).parallel_tool_calls


def nested(depth: int) -> dict:
    return {"a": nested(depth - 1)} if depth > 1 else {"a": [1]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": TOOL}, "tools"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a\n"}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "a" * 65}}]},
            "tools[0].function.name",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        ({"tools": [TOOL] * 129}, "tools"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": nested(64)}}]},
            "tools[0].function.parameters",
        ),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": TOOL}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
            "tool_choice.type",
        ),
        ({"tools": [TOOL], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ],
)
def test_wrong_tools_are_refused_by_the_path_of_their_field(fields, param):
    assert param == refused_param(**fields)


def test_parameters_may_nest_to_the_bound():
    schema = nested(63)

    assert prompt(
        tools=[{"type": "function", "function": {"name": "a", "parameters": schema}}]
    ).tools_json
