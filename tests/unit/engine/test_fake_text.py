"""The fake's answers: the same inputs give the same text, and every option shows."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.adapters.fake_json import NotSimpleError, called_tool, smallest
from services.engine.adapters.fake_text import (
    VOCABULARY,
    careful_words,
    document,
    logprobs_at,
    plan,
    seed_of,
    stamps,
    tool_call,
    words,
)
from shared.messages import ChatPrompt, Finish, Sampling, TextPrompt

SEED = seed_of(TextPrompt(text="hello"), 1, 2)


def answer(sampling: Sampling, *, seed: int = SEED, room: int = 100):
    return plan(sampling, choice=0, seed=seed, room=room, mean_tokens=40)


def text_of(pieces) -> str:
    return "".join(piece.text for piece in pieces)


def test_the_same_seed_gives_the_same_answer():
    first, second = (list(words(answer(Sampling()))) for _ in range(2))

    assert first == second
    assert text_of(first) != text_of(
        words(answer(Sampling(), seed=seed_of(TextPrompt(text="hallo"))))
    )


def test_a_longer_answer_begins_with_the_shorter_one():
    short = [list(words(answer(Sampling(ignore_eos=True), room=room))) for room in (10, 30)]

    assert text_of(short[1]).startswith(text_of(short[0]))


@pytest.mark.parametrize(
    ("sampling", "room", "count", "finish"),
    [
        (Sampling(ignore_eos=True), 300, 300, Finish.LENGTH),
        (Sampling(), 5, 5, Finish.LENGTH),
        (Sampling(min_tokens=90), 100, 90, Finish.STOP),
    ],
)
def test_length_follows_the_limits(sampling, room, count, finish):
    pieces = list(words(answer(sampling, room=room)))

    assert (count, finish) == (len(pieces), pieces[-1].finish)
    assert all(piece.finish is None for piece in pieces[:-1])


def test_stop_string_over_several_tokens_never_shows():
    plain = text_of(words(answer(Sampling(ignore_eos=True))))
    stop = plain[20:29]
    at = plain.index(stop)

    sampling = Sampling(stop=(stop, "never"), ignore_eos=True)
    pieces = list(careful_words(answer(sampling), sampling))

    assert plain[:at] == text_of(pieces)
    assert (Finish.STOP, stop) == (pieces[-1].finish, pieces[-1].extra.stop_reason)


def test_held_text_comes_out_at_the_end():
    sampling = Sampling(stop=("nowhere to be found",), ignore_eos=True)

    assert text_of(careful_words(answer(sampling), sampling)) == text_of(words(answer(sampling)))


def test_stop_token_ends_without_its_text():
    plain = list(words(answer(Sampling(ignore_eos=True))))
    token = plain[7].token_ids[0]
    first = next(index for index, piece in enumerate(plain) if piece.token_ids == [token])
    sampling = Sampling(stop_token_ids=(token,), ignore_eos=True)

    pieces = list(careful_words(answer(sampling), sampling))

    assert text_of(plain[:first]) == text_of(pieces)
    assert [token] == pieces[-1].token_ids
    assert token == pieces[-1].extra.stop_reason


def test_min_tokens_holds_off_a_stop_string():
    sampling = Sampling(stop=(" ",), min_tokens=10, ignore_eos=True)

    assert len(list(careful_words(answer(sampling), sampling))) > 10


@given(st.integers(0, (1 << 64) - 1), st.integers(0, 10_000), st.integers(0, 20))
def test_logprobs_are_a_distribution(seed, index, alternatives):
    (logprob,) = logprobs_at(seed, index, alternatives) or []

    assert len(logprob.top) == alternatives
    assert sum(math.exp(top.logprob) for top in logprob.top) <= 1.0
    assert math.exp(logprob.logprob) <= 1.0
    assert logprob.token_bytes == logprob.token.encode()
    assert len({top.token for top in logprob.top}) == alternatives
    assert [top.logprob for top in logprob.top] == sorted(
        (top.logprob for top in logprob.top), reverse=True
    )


def test_no_token_has_half_a_character():
    assert all(text.isprintable() or "\u200d" in text for text in VOCABULARY)
    assert len(VOCABULARY) == len(set(VOCABULARY))


def test_stamps_are_moments():
    first, second = list(stamps(answer(Sampling(ignore_eos=True), room=2)))

    assert (18, "T", " ") == (len(first.text), first.text[0], first.text[-1])
    assert int(first.text[1:]) <= int(second.text[1:])


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "object"}, {}),
        (
            {
                "type": "object",
                "title": "City",
                "properties": {
                    "name": {"type": "string", "minLength": 2},
                    "size": {"type": "integer", "minimum": 3},
                    "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2},
                    "extra": {"type": "null"},
                },
                "required": ["name", "size", "tags"],
                "additionalProperties": False,
            },
            {"name": "xx", "size": 3, "tags": ["a", "a"]},
        ),
        ({"const": "这"}, "这"),
        ({"type": ["boolean", "null"]}, True),
        ({"type": "number", "minimum": -5, "maximum": -2}, -2),
        ({"type": "integer", "exclusiveMinimum": 4}, 5),
    ],
)
def test_simple_schemas_get_their_smallest_document(schema, expected):
    assert expected == json.loads(smallest(json.dumps(schema).encode()))


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a"},
        {"anyOf": [{"type": "string"}]},
        {"type": "string", "pattern": "^a"},
        {"type": "strange"},
        {"type": "number", "minimum": 0.2, "maximum": 0.7},
        {"type": "array", "minItems": 1_000_000},
        7,
    ],
)
def test_other_schemas_are_refused(schema):
    with pytest.raises(NotSimpleError):
        smallest(json.dumps(schema).encode())


TOOLS = json.dumps(
    [
        {"type": "function", "function": {"name": "weather", "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}},
        {"type": "function", "function": {"name": "time"}},
    ]
).encode()  # fmt: skip


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", None),
        ("none", None),
        ("required", ("weather", '{"city":""}')),
        ("function:time", ("time", "{}")),
    ],
)
def test_a_demanded_tool_is_called(choice, expected):
    prompt = ChatPrompt(messages_json=b"[]", tools_json=TOOLS, tool_choice=choice)

    assert expected == called_tool(prompt)


def test_a_call_comes_with_its_head_first():
    pieces = list(tool_call(0, "weather", '{"city":""}', seed=SEED, room=100))
    calls = [call for piece in pieces for call in piece.extra.tool_calls]

    assert calls[0].name == "weather"
    assert calls[0].id.startswith("call_")
    assert [None] * (len(calls) - 1) == [call.id for call in calls[1:]]
    assert "".join(call.arguments for call in calls) == '{"city":""}'
    assert pieces[-1].finish is Finish.TOOL_CALLS


def test_a_document_is_cut_at_its_room():
    pieces = list(document(0, '{"answer":42}', Sampling(), room=2))

    assert text_of(pieces) == '{"answer'
    assert pieces[-1].finish is Finish.LENGTH
