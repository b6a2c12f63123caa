"""No field of OpenAI's API is silently ignored: each one that the official client can send is obeyed or refused by its name."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import pytest
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params

from services.gateway.call import ApiError
from services.gateway.openai import unsupported
from services.gateway.openai.chat import ChatBody, parse_chat
from services.gateway.openai.completion import CompletionBody
from tests.support.openai_calls import LIMITS, SEED, chat, chat_body, completion

LABELS = {"prompt_cache_key", "safety_identifier"}
"""No effect on the answer, whatever their value."""


def fields_of(module: Any) -> set[str]:
    kinds = (module.CompletionCreateParamsNonStreaming, module.CompletionCreateParamsStreaming)
    return {
        name
        for kind in kinds
        for base in (kind, *kind.__orig_bases__)
        for name in getattr(base, "__annotations__", ())
    }


CHAT_FIELDS = fields_of(chat_params)
COMPLETION_FIELDS = fields_of(completion_params)


def test_the_clients_fields_are_found():
    assert {"model", "messages", "stream", "web_search_options"} <= CHAT_FIELDS
    assert {"model", "prompt", "stream", "best_of"} <= COMPLETION_FIELDS


def test_every_field_of_the_official_client_is_known():
    assert set() == CHAT_FIELDS - set(ChatBody.__struct_fields__)
    assert set() == COMPLETION_FIELDS - set(CompletionBody.__struct_fields__)


@pytest.mark.parametrize(
    ("body", "table"), [(ChatBody, unsupported.CHAT), (CompletionBody, unsupported.COMPLETION)]
)
def test_only_fields_of_the_table_take_anything_from_the_decoder(body, table):
    assert set(table) == {
        name for name, kind in get_type_hints(body).items() if kind == unsupported.Undecoded
    }


@pytest.mark.parametrize("name", sorted(unsupported.CHAT))
@pytest.mark.parametrize("value", [True, 1, "x", ["x"], {"x": 1}, {"type": "x"}], ids=json.dumps)
def test_an_unsupported_chat_field_is_refused_by_its_name(name, value):
    with pytest.raises(ApiError, match=f"`{name}` is not supported: ") as caught:
        chat(**{name: value})

    assert (400, name, "unsupported_parameter") == (
        caught.value.status,
        caught.value.param,
        caught.value.code,
    )


@pytest.mark.parametrize("name", sorted(unsupported.COMPLETION))
@pytest.mark.parametrize("value", [True, 1, "x", ["x"], {"x": 1}], ids=json.dumps)
def test_an_unsupported_completion_field_is_refused_by_its_name(name, value):
    with pytest.raises(ApiError, match=f"`{name}` is not supported: ") as caught:
        completion(**{name: value})

    assert (400, name, "unsupported_parameter") == (
        caught.value.status,
        caught.value.param,
        caught.value.code,
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for name, entry in unsupported.CHAT.items()
        for value in (None, *entry.harmless)
    ],
)
def test_a_harmless_value_changes_nothing(name, value):
    assert chat() == chat(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for name, entry in unsupported.COMPLETION.items()
        for value in (None, *entry.harmless)
    ],
)
def test_a_harmless_value_of_a_completion_changes_nothing(name, value):
    assert completion() == completion(**{name: value})


@pytest.mark.parametrize(
    "value",
    [
        b'"\xff"',
        b'"\\ud800"',
        b"1e999",
        b"NaN",
        b"[" * 9,
        b"[" * 10_000 + b"]" * 10_000,
        b'{"a":1,"a":2}',
    ],
)
def test_what_is_no_json_is_refused_in_an_unsupported_field_too(value):
    body = chat_body(store="here").replace(b'"here"', value)

    with pytest.raises(ApiError) as caught:
        parse_chat(body, LIMITS, seed=SEED)

    assert caught.value.status == 400


def test_zero_is_not_false():
    with pytest.raises(ApiError, match="`store` is not supported"):
        chat(store=0)


OBEYED = {
    "frequency_penalty": 1.0,
    "logit_bias": {"5": 1},
    "max_completion_tokens": 9,
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "other"}],
    "model": "other",
    "n": 2,
    "presence_penalty": 1.0,
    "response_format": {"type": "json_object"},
    "seed": 1,
    "service_tier": "flex",
    "stop": "x",
    "stream": True,
    "temperature": 0.5,
    "top_p": 0.5,
    "user": "me",
}
"""Values that must show in the call, for the fields that need no other field beside them."""
WITH_ANOTHER = {
    "logprobs",
    "parallel_tool_calls",
    "stream_options",
    "tool_choice",
    "tools",
    "top_logprobs",
}


@pytest.mark.parametrize("name", sorted(OBEYED))
def test_a_supported_field_shows_in_the_call(name):
    assert chat() != chat(**{name: OBEYED[name]})


def test_every_chat_field_is_obeyed_a_label_or_refused():
    assert CHAT_FIELDS == set(OBEYED) | WITH_ANOTHER | LABELS | set(unsupported.CHAT)
