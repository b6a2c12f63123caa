"""Whatever a client sends is answered or refused: nothing but `ApiError` is raised, and what is taken can be passed on."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.gateway.call import ApiError, Call
from services.gateway.openai.chat import ChatBody, parse_chat
from services.gateway.openai.completion import CompletionBody, parse_completion
from services.gateway.openai.openapi import document
from shared.messages import ChatPrompt, Prompt, Sampling
from tests.support.openai_calls import LIMITS, SEED

PARSERS = {"ChatBody": parse_chat, "CompletionBody": parse_completion}
DOCUMENT = json.loads(document(version="0", limits=LIMITS))
VALIDATORS = {
    name: jsonschema.Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    )
    for name in PARSERS
}

NUMBERS = st.one_of(
    st.integers(-3, 130),
    st.sampled_from([2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**40]),
    st.floats(-3, 3),
    st.floats(),
)
WORDS = st.one_of(
    st.sampled_from(
        [
            "",
            "auto",
            "none",
            "f",
            "user",
            "system",
            "assistant",
            "tool",
            "text",
            "function",
            "json_schema",
            "hi",
        ]
    ),
    st.text(max_size=8),
    st.text(st.characters(categories=["Cs", "Cc", "Zl"]), max_size=3),
)
NAMES = st.one_of(
    st.sampled_from(sorted({*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__})),
    st.sampled_from(
        [
            "role",
            "content",
            "type",
            "text",
            "function",
            "name",
            "tool_calls",
            "json_schema",
            "schema",
            "id",
            "0",
            "7",
        ]
    ),
    WORDS,
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=10,
)

VALID: dict[str, dict[str, Any]] = {
    "ChatBody": {
        "model": "m",
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "n"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                ],
            },
            {"role": "tool", "content": "4", "tool_call_id": "c"},
        ],
        "tools": [
            {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        ],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"type": "object"}},
        },
        "logit_bias": {"5": 1},
        "stop": ["x"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": True,
        "top_logprobs": 2,
        "metadata": {},
    },
    "CompletionBody": {
        "model": "m",
        "prompt": ["a", "b"],
        "logprobs": 1,
        "stop_token_ids": [5],
        "temperature": 0.5,
        "seed": 3,
        "min_tokens": 1,
        "service_tier": "flex",
    },
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = (
        value.keys()
        if isinstance(value, dict)
        else range(len(value))
        if isinstance(value, list)
        else ()
    )
    return [path, *(place for key in keys for place in places(value[key], (*path, key)))]


@st.composite
def changed(draw: st.DrawFn, name: str) -> Any:
    """A valid body in which something is replaced, removed or added."""
    body = {"body": copy.deepcopy(VALID[name])}
    for _ in range(draw(st.integers(1, 3))):
        *path, key = draw(st.sampled_from(places(body)[1:]))
        parent = body
        for step in path:
            parent = parent[step]
        action = draw(st.sampled_from(["replace", "remove", "add"]))
        if action == "remove" and path:
            del parent[key]
        elif action == "add" and isinstance(parent[key], dict):
            parent[key][draw(NAMES)] = draw(VALUES)
        else:
            parent[key] = draw(VALUES)
    return body["body"]


def check(name: str, body: Any) -> Call | None:
    """Parse; what is taken must agree with the OpenAPI document and survive the wire."""
    try:
        call = PARSERS[name](json.dumps(body).encode(), LIMITS, seed=SEED)
    except ApiError as error:
        refused = error
    else:
        refused = None
    if refused is not None:
        assert (400, True) == (refused.status, len(refused.body()) < 1000)
        return None
    VALIDATORS[name].validate(body)
    wire = msgspec.msgpack.encode((call.prompts, call.sampling))
    assert (call.prompts, call.sampling) == msgspec.msgpack.decode(
        wire, type=tuple[tuple[Prompt, ...], Sampling]
    )
    for prompt in call.prompts:
        if isinstance(prompt, ChatPrompt):
            assert all(None not in message.values() for message in json.loads(prompt.messages_json))
    return call


@pytest.mark.parametrize("name", PARSERS)
def test_the_bodies_that_are_changed_here_are_valid(name):
    assert check(name, VALID[name]) is not None


@given(VALUES)
def test_any_json_is_taken_or_refused(body):
    for name in PARSERS:
        check(name, body)


@given(st.one_of(*(st.tuples(st.just(name), changed(name)) for name in PARSERS)))
@example(("CompletionBody", {"model": "m", "prompt": [True]}))
@example(("ChatBody", VALID["ChatBody"] | {"logit_bias": {"9" * 40: 1}}))
@example(("ChatBody", VALID["ChatBody"] | {"seed": -(10**40)}))
def test_a_changed_request_is_taken_or_refused(named):
    check(*named)


@given(st.data())
def test_any_bytes_are_taken_or_refused(data):
    for name, parse in PARSERS.items():
        whole = json.dumps(VALID[name]).encode()
        start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(whole))] * 2)))
        body = whole[:start] + data.draw(st.binary(max_size=6)) + whole[end:]

        with suppress(ApiError):
            parse(body, LIMITS, seed=SEED)
