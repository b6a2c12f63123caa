"""Chat requests: which are taken as what, and which are refused with which field's name."""

from __future__ import annotations

import msgspec
import pytest

from services.gateway.call import ApiError
from services.gateway.openai.chat import ChatBody, parse_chat
from services.gateway.openai.limits import RequestLimits
from shared.messages import ChatPrompt, Priority, Sampling
from tests.support.openai_calls import LIMITS, SEED, chat, chat_body

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


def refusal(**fields) -> ApiError:
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    return caught.value


def tool_of(description: str) -> dict:
    return {"type": "function", "function": {"name": "f", "description": description}}


def nested(depth: int) -> dict:
    schema: dict = {}
    for _ in range(depth - 1):
        schema = {"a": schema}
    return schema


def test_a_bare_request_leaves_everything_to_the_model_but_the_seed():
    call = chat()

    assert Sampling(seed=SEED) == call.sampling
    assert ("chat", "m", False, False, None, "") == (
        call.kind,
        call.model,
        call.stream,
        call.include_usage,
        call.priority,
        call.user,
    )
    assert (ChatPrompt(messages_json=b'[{"role":"user","content":"hi"}]'),) == call.prompts


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"temperature": 2}, {"temperature": 2.0}),
        ({"top_p": 1}, {"top_p": 1.0}),
        ({"top_k": -1}, {"top_k": -1}),
        ({"top_k": 0}, {"top_k": 0}),
        ({"min_p": 1}, {"min_p": 1.0}),
        ({"n": 128, "temperature": 0}, {"n": 128, "temperature": 0.0}),
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"max_tokens": 5, "max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"min_tokens": 5, "max_tokens": 5}, {"min_tokens": 5, "max_tokens": 5}),
        ({"stop": "a"}, {"stop": ("a",)}),
        ({"stop": ["a", "\0"]}, {"stop": ("a", "\0")}),
        ({"stop": []}, {}),
        ({"stop_token_ids": [0, 5]}, {"stop_token_ids": (0, 5)}),
        ({"seed": 0}, {"seed": 0}),
        ({"seed": -(2**63)}, {"seed": -(2**63)}),
        ({"seed": 2**63 - 1}, {"seed": 2**63 - 1}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 20}, {"logprobs": 20}),
        ({"logprobs": False, "top_logprobs": 0}, {}),
        (
            {"presence_penalty": -2, "frequency_penalty": 2},
            {"presence_penalty": -2.0, "frequency_penalty": 2.0},
        ),
        ({"repetition_penalty": 1.2}, {"repetition_penalty": 1.2}),
        ({"logit_bias": {"0": -100, "50256": 1.5}}, {"logit_bias": {0: -100.0, 50256: 1.5}}),
        ({"logit_bias": {}}, {}),
        ({"ignore_eos": True}, {"ignore_eos": True}),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": SCHEMA, "strict": None},
                }
            },
            {"json_schema": msgspec.json.encode(SCHEMA)},
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": nested(64)},
                }
            },
            {"json_schema": msgspec.json.encode(nested(64))},
        ),
    ],
)
def test_sampling_fields_are_taken(fields, expected):
    assert msgspec.structs.replace(Sampling(seed=SEED), **expected) == chat(**fields).sampling


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_k": 10**30}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": "a" * 257}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stop": [5]}, "stop[0]"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [1] * 257}, "stop_token_ids"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 2.1}, "repetition_penalty"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"+1": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"01": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {"1": "5"}}, "logit_bias"),
        ({"logit_bias": {"9" * 30: 1}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"response_format": "json_object"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a b", "schema": {}},
                }
            },
            "response_format.json_schema.name",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": nested(65)},
                }
            },
            "response_format.json_schema.schema",
        ),
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        (
            {"stream": True, "stream_options": {"include_usage": "x"}},
            "stream_options.include_usage",
        ),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
        ),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats",
        ),
        ({"stream": True, "stream_options": {"x": True}}, "stream_options.x"),
        ({"service_tier": "scale"}, "service_tier"),
        ({"tools": [tool_of("x" * 530_000)]}, "tools"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"title": "x" * 270_000}},
                }
            },
            "response_format.json_schema.schema",
        ),
        ({"user": 5}, "user"),
        ({"user": "a\0"}, "user"),
        ({"user": "a" * 513}, "user"),
        ({"safety_identifier": "a\n"}, "safety_identifier"),
        ({"prompt_cache_key": "a" * 513}, "prompt_cache_key"),
        ({"model": ""}, "model"),
        ({"model": None}, "model"),
        ({"model": "a\nb"}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "user", "content": "x"}] * 4097}, "messages"),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(fields, param):
    error = refusal(**fields)

    assert (400, "invalid_request_error", param) == (error.status, error.kind, error.param)
    assert param.split("[")[0].split(".")[0] in str(error)


@pytest.mark.parametrize("name", ["model", "messages"])
def test_a_missing_field_is_named(name):
    fields = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    del fields[name]

    with pytest.raises(ApiError, match=f"Missing required parameter: `{name}`") as caught:
        parse_chat(msgspec.json.encode(fields), LIMITS, seed=SEED)

    assert name == caught.value.param


def test_an_explicit_null_is_an_absent_field():
    optional = set(ChatBody.__struct_fields__) - {"model", "messages"}

    assert chat() == chat(**dict.fromkeys(optional))


@pytest.mark.parametrize(
    ("tier", "priority"),
    [
        (None, None),
        ("auto", None),
        ("default", Priority.DEFAULT),
        ("priority", Priority.INTERACTIVE),
        ("fast", Priority.INTERACTIVE),
        ("flex", Priority.BATCH),
        ("batch", Priority.BATCH),
    ],
)
def test_service_tier_is_a_class_of_service(tier, priority):
    assert priority == chat(service_tier=tier).priority


def test_labels_are_taken_and_the_user_comes_first():
    assert "me" == chat(user="me", safety_identifier="hash").user
    assert "hash" == chat(safety_identifier="hash").user
    assert "" == chat(prompt_cache_key="key").user


def test_usage_is_included_only_where_it_is_asked_for():
    assert not chat(stream=True).include_usage
    assert not chat(stream=True, stream_options={}).include_usage
    assert chat(
        stream=True, stream_options={"include_usage": True, "include_obfuscation": False}
    ).include_usage


def test_work_is_the_prompt_and_what_may_be_generated():
    base = chat(max_tokens=1).work_tokens

    assert base + 999 == chat(max_tokens=1000).work_tokens
    assert base + 7 == chat(max_tokens=1, n=8).work_tokens
    assert base + LIMITS.assumed_output_tokens - 1 == chat().work_tokens
    assert (
        base + 100
        == chat(max_tokens=1, messages=[{"role": "user", "content": "hi" + "x" * 400}]).work_tokens
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"nope", "not valid JSON"),
        (chat_body() + b" {}", "not valid JSON"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b"5", "must be a JSON object"),
        (chat_body().replace(b'"hi"', b'"\\ud800"'), "not valid JSON"),
        (chat_body().replace(b'"hi"', b'"\\ud800x"'), "not valid JSON"),
        (chat_body().replace(b'"hi"', b'"\xed\xa0\x80"'), "not valid JSON"),
        (chat_body().replace(b'"hi"', b'"\xff"'), "not valid JSON"),
        (chat_body(top_p=0.5).replace(b"0.5", b"NaN"), "not valid JSON"),
        (chat_body(top_p=0.5).replace(b"0.5", b"Infinity"), "not valid JSON"),
        (chat_body(top_p=0.5).replace(b"0.5", b"1e999"), "out of range"),
        (chat_body(seed=5).replace(b"5", b"1" * 5000), "out of range"),
        (chat_body(store="x").replace(b'"x"', b"[" * 100_000), "not valid JSON"),
    ],
)
def test_what_is_no_request_is_refused(body, message):
    with pytest.raises(ApiError, match=message) as caught:
        parse_chat(body, LIMITS, seed=SEED)

    assert 400 == caught.value.status


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"a","model":"b","messages":[{"role":"user","content":"hi"}]}',
        b' {"model":"a","mode\\u006c":"b","messages":[{"role":"user","content":"hi"}]}',
        b'{"model":"a","messages":[{"role":"user","role":"user","content":"hi"}]}',
        chat_body(tools=[TOOL]).replace(b'{"type": "object"', b'{"type": 1, "type": 2'),
        b'{"model":"a","n":3,"n":null,"messages":[{"role":"user","content":"hi"}]}',
    ],
)
def test_a_key_that_comes_twice_is_refused(body):
    with pytest.raises(ApiError, match="same key twice"):
        parse_chat(body, LIMITS, seed=SEED)


def test_a_body_beyond_the_bound_is_too_large():
    with pytest.raises(ApiError) as caught:
        parse_chat(chat_body(), RequestLimits(max_body_bytes=10), seed=SEED)

    assert 413 == caught.value.status


def test_nul_is_text_like_any_other():
    call = chat(messages=[{"role": "user", "content": "a\0b"}])

    assert isinstance(call.prompts[0], ChatPrompt)
    assert b'[{"role":"user","content":"a\\u0000b"}]' == call.prompts[0].messages_json


def test_an_unknown_field_is_refused_with_the_name_that_was_meant():
    error = refusal(max_token=5)

    assert "unrecognized request argument supplied: max_token. Did you mean `max_tokens`?" == str(
        error
    )
    assert ("max_token", "unknown_parameter") == (error.param, error.code)


def test_an_unknown_field_without_a_near_one_gets_no_suggestion():
    assert "unrecognized request argument supplied: zzz." == str(refusal(zzz=1))


def test_an_error_repeats_only_a_little_of_what_the_client_sent():
    error = refusal(**{"x" * 1_000_000: 1})

    assert len(error.body()) < 500
    assert len(refusal(messages=[{"role": "y" * 1_000_000}]).body()) < 500


@pytest.mark.parametrize(
    "trick", ["a` - at `$.b", "` - at `key` in `$", "a - at `$.model`", " - at ``", "`", "", "\n"]
)
def test_field_names_that_look_like_the_decoders_own_words_do_no_harm(trick):
    assert 400 == refusal(**{trick: 1}).status
    assert 400 == refusal(messages=[{"role": "user", "content": "x", trick: 1}]).status
    assert 400 == refusal(messages=[{"role": trick}]).status
    assert 400 == refusal(logit_bias={trick: 1}).status


def test_parts_are_bounded_over_all_messages():
    text, call = {"type": "text", "text": ""}, {"id": "c", "type": "function"}
    call["function"] = {"name": "f", "arguments": ""}
    half = LIMITS.max_parts // 2
    messages = [
        {"role": "user", "content": [text] * half},
        {"role": "assistant", "tool_calls": [call] * half},
    ]

    assert 1 == len(chat(messages=messages).prompts)
    assert "messages" == refusal(messages=[*messages, {"role": "user", "content": [text]}]).param


def test_a_schema_of_a_million_parts_is_refused_by_its_size():
    schema = {"x": [{}] * 1_000_000}

    error = refusal(
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    )
    assert "bytes" in str(error)
    function = {"name": "f", "parameters": schema}
    assert "bytes" in str(refusal(tools=[{"type": "function", "function": function}]))
