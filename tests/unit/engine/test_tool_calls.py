"""Forced tool calls: what the grammar wants, and that the calls are found however the text is cut."""

from __future__ import annotations

import itertools
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.adapters.tool_calls import CallList, NamedCall, forced_calls
from services.engine.ports import RefusedError
from shared.messages import ChatPrompt, RefuseReason


def prompt(choice: str, *functions: dict, **fields) -> ChatPrompt:
    tools = [{"type": "function", "function": function} for function in functions]
    return ChatPrompt(
        messages_json=b"[]", tools_json=msgspec.json.encode(tools), tool_choice=choice, **fields
    )


WEATHER = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
NOOP = {"name": "noop"}


@pytest.mark.parametrize("choice", ["none", "auto"])
def test_nothing_is_forced_by_a_free_choice(choice):
    assert forced_calls(prompt(choice, WEATHER)) is None


def test_a_named_function_forces_its_parameters():
    forced = forced_calls(prompt("function:weather", NOOP, WEATHER))

    assert forced is not None
    assert WEATHER["parameters"] == json.loads(forced.schema)
    assert isinstance(forced.listener(), NamedCall)


def test_a_function_without_parameters_takes_any_object():
    forced = forced_calls(prompt("function:noop", NOOP))

    assert forced is not None
    assert {"type": "object"} == json.loads(forced.schema)


def test_required_forces_a_list_of_calls_of_any_function():
    forced = forced_calls(prompt("required", WEATHER, NOOP))

    assert forced is not None
    schema = json.loads(forced.schema)
    calls = schema["items"]["anyOf"]
    assert ("array", 1) == (schema["type"], schema["minItems"])
    assert ["weather", "noop"] == [call["properties"]["name"]["const"] for call in calls]
    assert WEATHER["parameters"] == calls[0]["properties"]["parameters"]
    assert "maxItems" not in schema


def test_one_call_at_most_where_parallel_ones_are_not_wanted():
    forced = forced_calls(prompt("required", WEATHER, parallel_tool_calls=False))

    assert forced is not None
    assert 1 == json.loads(forced.schema)["maxItems"]


def test_definitions_move_to_the_root_where_references_look_for_them():
    shared = {"$defs": {"a": {"type": "null"}}, "$ref": "#/$defs/a"}
    forced = forced_calls(
        prompt("required", {"name": "f", "parameters": shared}, {"name": "g", "parameters": shared})
    )

    assert forced is not None
    assert shared["$defs"] == json.loads(forced.schema)["$defs"]


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (prompt("function:other", WEATHER), "tool_choice"),
        (prompt("required"), "tool_choice"),
        (ChatPrompt(messages_json=b"[]", tool_choice="required"), "tool_choice"),
        (ChatPrompt(messages_json=b"[]", tools_json=b"{", tool_choice="required"), "tools"),
        (ChatPrompt(messages_json=b"[]", tools_json=b"[1]", tool_choice="required"), "tools"),
        (prompt("function:f", {"name": "f", "parameters": {"enum": list(range(9999))}}), "tools"),
        (
            prompt(
                "required",
                {"name": "f", "parameters": {"$defs": {"a": {"type": "null"}}}},
                {"name": "g", "parameters": {"$defs": {"a": {"type": "string"}}}},
            ),
            "tools",
        ),
    ],
)
def test_what_can_not_be_forced_is_refused(asked, param):
    with pytest.raises(RefusedError) as caught:
        forced_calls(asked)

    assert (RefuseReason.INVALID, param) == (caught.value.reason, caught.value.param)


# --- the calls in the text

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3)
    ),
    max_leaves=8,
)
CALLS = st.lists(
    st.tuples(st.sampled_from(["weather", "noop", "name-2_x"]), JSON), min_size=1, max_size=3
)
INDENT = st.sampled_from([None, 0, 2])


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    """Return the text cut at these places."""
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges)]


@given(calls=CALLS, indent=INDENT, cuts=st.lists(st.integers(0, 10_000), max_size=12))
def test_calls_are_found_however_the_text_is_cut(calls, indent, cuts):
    text = json.dumps([{"name": name, "parameters": value} for name, value in calls], indent=indent)
    listener = CallList()

    said = [listener.hear(piece, [], is_last=False) for piece in pieces_of(text, cuts)]
    deltas = [delta for each in said for delta in each.calls]

    assert all(each.content == "" for each in said)
    assert [name for name, _ in calls] == [delta.name for delta in deltas if delta.id]
    assert len({delta.id for delta in deltas if delta.id}) == len(calls)
    for index, (_, value) in enumerate(calls):
        own = [delta for delta in deltas if delta.index == index]
        assert own[0].id is not None
        assert all(delta.id is None and delta.name is None and delta.arguments for delta in own[1:])
        assert value == json.loads("".join(delta.arguments for delta in own))


def test_arguments_come_while_they_are_written():
    listener = CallList()

    first = listener.hear('[{"name": "weather", "parameters": {"ci', [], is_last=False)
    second = listener.hear('ty": "Os', [], is_last=False)

    assert ['{"ci'] == [delta.arguments for delta in first.calls]
    assert ['ty": "Os'] == [delta.arguments for delta in second.calls]


def test_a_list_that_is_cut_short_ends_in_the_middle():
    said = CallList().hear('[{"name": "weather", "param', [], is_last=True)

    assert [] == said.calls


@given(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=5))
def test_a_named_call_is_all_of_the_text(texts):
    listener = NamedCall("weather")

    deltas = [delta for text in texts for delta in listener.hear(text, [], is_last=False).calls]

    assert ("weather", 0) == (deltas[0].name, deltas[0].index)
    assert deltas[0].id.startswith("call_")
    assert "".join(texts) == "".join(delta.arguments for delta in deltas)
    assert all(delta.id is None and delta.name is None for delta in deltas[1:])


def test_a_named_call_says_nothing_for_no_text():
    listener = NamedCall("weather")
    listener.hear("{", [], is_last=False)

    assert [] == listener.hear("", [], is_last=False).calls
