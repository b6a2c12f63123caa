"""Answers that are not streamed."""

from __future__ import annotations

import json

import pytest

from services.gateway.call import Call
from services.gateway.openai.answer import LOGPROB_CHARS, AnswerBuilder, chars_of
from shared.messages import Finish, StreamError, ToolCallDelta
from tests.support.openai_calls import (
    CREATED_S,
    FAILURES,
    REQUEST_ID,
    USAGE,
    USAGE_OBJECT,
    chat,
    completion,
    delta,
    logprob,
)


def builder(call: Call) -> AnswerBuilder:
    return AnswerBuilder(call, request_id=REQUEST_ID, created=CREATED_S)


def answer(call: Call, *deltas) -> dict:
    built = builder(call)
    for each in deltas:
        built.add(each, 0)
    assert built.complete
    return json.loads(built.body(USAGE))


def test_a_chat_answer():
    whole = answer(chat(), delta("a"), delta("b", Finish.STOP, usage=USAGE))

    assert {
        "id": REQUEST_ID,
        "object": "chat.completion",
        "created": CREATED_S,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "ab", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": USAGE_OBJECT,
    } == whole


def test_a_completion():
    whole = answer(completion(), delta("a"), delta("b", Finish.LENGTH))

    assert {
        "id": REQUEST_ID,
        "object": "text_completion",
        "created": CREATED_S,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "text": "ab",
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
            }
        ],
        "usage": USAGE_OBJECT,
    } == whole


def test_an_answer_without_a_word_has_empty_content():
    (choice,) = answer(chat(), delta("", Finish.STOP))["choices"]

    assert "" == choice["message"]["content"]


def test_an_answer_is_complete_when_every_choice_has_ended():
    built = builder(completion(prompt=["a", "b"], n=2))
    states = []
    for index in (2, 0, 0, 3, 1):
        built.add(delta(str(index), Finish.STOP), index)
        states.append(built.complete)

    assert [False, False, False, False, True] == states
    texts = [
        (choice["index"], choice["text"]) for choice in json.loads(built.body(USAGE))["choices"]
    ]
    assert [(0, "00"), (1, "1"), (2, "2"), (3, "3")] == texts


def test_tool_calls_are_put_together():
    pieces = [
        ToolCallDelta(index=1, id="c2", name="g"),
        ToolCallDelta(index=0, id="c1", name="f", arguments='{"a"'),
        ToolCallDelta(index=0, arguments=":1}"),
    ]

    whole = answer(
        chat(),
        delta("", tool_calls=pieces[:2]),
        delta("", Finish.TOOL_CALLS, tool_calls=pieces[2:]),
    )

    (choice,) = whole["choices"]
    assert "tool_calls" == choice["finish_reason"]
    assert {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
            {"id": "c2", "type": "function", "function": {"name": "g", "arguments": ""}},
        ],
    } == choice["message"]


def test_text_beside_tool_calls_is_kept():
    (choice,) = answer(
        chat(),
        delta("let me see"),
        delta("", Finish.TOOL_CALLS, tool_calls=[ToolCallDelta(index=0, id="c", name="f")]),
    )["choices"]

    assert "let me see" == choice["message"]["content"]


def test_log_probabilities_of_a_chat():
    call = chat(logprobs=True, top_logprobs=0)

    (choice,) = answer(
        call,
        delta("a", logprobs=[logprob("a", a=-0.5)]),
        delta("b", Finish.STOP, logprobs=[logprob("b")]),
    )["choices"]

    assert ["a", "b"] == [entry["token"] for entry in choice["logprobs"]["content"]]
    assert [[], []] == [entry["top_logprobs"] for entry in choice["logprobs"]["content"]]


def test_log_probabilities_of_a_completion():
    call = completion(logprobs=0)

    (choice,) = answer(
        call,
        delta("ab", logprobs=[logprob("ab")]),
        delta("c", Finish.STOP, logprobs=[logprob("c")]),
    )["choices"]

    assert {
        "text_offset": [0, 2],
        "token_logprobs": [-0.5, -0.5],
        "tokens": ["ab", "c"],
        "top_logprobs": [{"ab": -0.5}, {"c": -0.5}],
    } == choice["logprobs"]


def test_what_stopped_a_choice_is_told():
    (choice,) = answer(chat(), delta("a", Finish.STOP, stop_reason="END"))["choices"]

    assert "END" == choice["stop_reason"]


@pytest.mark.parametrize(("failing", "status", "kind"), FAILURES)
def test_a_failure_ends_the_answer(failing, status, kind):
    built = builder(chat())
    built.add(delta("a"), 0)

    built.add(failing, 0)
    built.add(delta("b", Finish.STOP), 0)

    assert not built.complete
    assert built.failure is not None
    assert (status, kind) == (built.failure.status, built.failure.kind)


@pytest.mark.parametrize(
    ("large", "chars"),
    [
        (delta("x" * 1001), 1001),
        (delta("ab", logprobs=[logprob("a", b=-1.0, c=-2.0, d=-3.0)]), 2 + 4 * LOGPROB_CHARS),
        (delta("", tool_calls=[ToolCallDelta(index=0, arguments="x" * 1001)]), 1001),
        (delta("b", Finish.STOP, usage=USAGE), 1),
    ],
)
def test_all_that_a_delta_holds_counts_against_the_bound(large, chars):
    assert chars == chars_of(large)


def test_its_repr_tells_the_state():
    built = builder(chat(n=2))
    built.add(delta("a", Finish.STOP), 0)

    assert "<AnswerBuilder chatcmpl-abc unfinished=1 None>" == repr(built)
    built.add(delta("", error=StreamError(message="the engine died")), 1)
    assert "the engine died" in repr(built)
