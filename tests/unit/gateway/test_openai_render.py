"""Streamed answers: the chunks of both APIs, their framing, and how a stream ends."""

from __future__ import annotations

import json

import pytest

from services.gateway.call import ApiError, Call
from services.gateway.openai.ending import failure_of, total_usage
from services.gateway.openai.render import ChunkRenderer, PayloadRenderer
from shared.messages import Finish, ToolCallDelta, Usage
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


def renderer(call: Call) -> ChunkRenderer:
    return ChunkRenderer(call, request_id=REQUEST_ID, created=CREATED_S)


def payloads(call: Call) -> PayloadRenderer:
    return PayloadRenderer(call, request_id=REQUEST_ID, created=CREATED_S)


def events(data: bytes) -> list[dict]:
    blocks = data.decode().split("\n\n")
    assert "" == blocks.pop()
    assert all(block.startswith("data: ") for block in blocks)
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def choices(data: bytes) -> list[dict]:
    return [choice for event in events(data) for choice in event["choices"]]


def test_a_chat_opens_with_the_role_of_each_choice():
    opened = choices(renderer(chat(stream=True, n=2)).opening())

    role = {"role": "assistant", "content": ""}
    assert [
        {"index": 0, "delta": role, "logprobs": None, "finish_reason": None},
        {"index": 1, "delta": role, "logprobs": None, "finish_reason": None},
    ] == opened


def test_a_completion_has_no_opening():
    assert b"" == renderer(completion(stream=True)).opening()


def test_a_chunk_of_a_chat():
    (event,) = events(renderer(chat(stream=True)).delta(delta("a b"), 0))

    assert {
        "id": REQUEST_ID,
        "object": "chat.completion.chunk",
        "created": CREATED_S,
        "model": "m",
        "choices": [
            {"index": 0, "delta": {"content": "a b"}, "logprobs": None, "finish_reason": None}
        ],
    } == event


def test_a_chunk_of_a_completion():
    call = completion(stream=True, prompt=["a", "b"], n=2)

    (event,) = events(renderer(call).delta(delta("a b"), 3))

    assert {
        "id": REQUEST_ID,
        "object": "text_completion",
        "created": CREATED_S,
        "model": "m",
        "choices": [{"index": 3, "text": "a b", "logprobs": None, "finish_reason": None}],
    } == event


def test_a_delta_of_nothing_is_no_event():
    assert b"" == renderer(chat(stream=True)).delta(delta(), 0)
    assert b"" == renderer(chat(stream=True)).delta(delta(usage=USAGE), 0)
    assert [] == payloads(chat(stream=True)).delta(delta(), 0)


@pytest.mark.parametrize("finish", [Finish.STOP, Finish.LENGTH, Finish.TOOL_CALLS])
def test_a_chat_choice_ends_in_a_chunk_of_its_own(finish):
    *_, ended = choices(renderer(chat(stream=True)).delta(delta("x", finish), 0))

    assert {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": finish.value,
        "stop_reason": None,
    } == ended


@pytest.mark.parametrize(
    ("finish", "reason"),
    [(Finish.STOP, "stop"), (Finish.LENGTH, "length"), (Finish.TOOL_CALLS, "stop")],
)
def test_a_completion_choice_ends_in_a_chunk_of_its_own(finish, reason):
    *_, ended = choices(renderer(completion(stream=True)).delta(delta("x", finish), 0))

    assert {
        "index": 0,
        "text": "",
        "logprobs": None,
        "finish_reason": reason,
        "stop_reason": None,
    } == ended


@pytest.mark.parametrize("reason", ["END", 7])
def test_what_stopped_a_choice_is_told(reason):
    *_, ended = choices(
        renderer(chat(stream=True)).delta(delta("x", Finish.STOP, stop_reason=reason), 0)
    )

    assert reason == ended["stop_reason"]


def test_usage_comes_last_and_only_where_it_was_asked_for():
    asked = renderer(chat(stream=True, stream_options={"include_usage": True}))

    assert events(asked.opening())[0]["usage"] is None
    assert events(asked.delta(delta("x", Finish.STOP), 0))[0]["usage"] is None
    closing = asked.closing(USAGE)
    assert closing.endswith(b"data: [DONE]\n\n")
    (event,) = events(closing.removesuffix(b"data: [DONE]\n\n"))
    assert ([], USAGE_OBJECT) == (event["choices"], event["usage"])
    assert b"data: [DONE]\n\n" == renderer(chat(stream=True)).closing(USAGE)


def test_log_probabilities_of_a_chat():
    call = chat(stream=True, logprobs=True, top_logprobs=1)
    entry = logprob("é", -0.25, é=-0.25, b=float("-inf"))

    (choice,) = choices(renderer(call).delta(delta("é", logprobs=[entry]), 0))

    top = {"token": "é", "logprob": -0.25, "bytes": [195, 169]}
    assert {"content": [top | {"top_logprobs": [top]}], "refusal": None} == choice["logprobs"]


def test_log_probabilities_of_a_completion_count_the_offset_of_each_choice():
    shown = renderer(completion(stream=True, logprobs=1, n=2))
    entries = [logprob("ab", -1.0, ab=-1.0), logprob("c", -2.0, d=-0.1, e=-9.0)]

    first, second, other = (
        choices(shown.delta(delta("abc", logprobs=entries), index))[0]["logprobs"]
        for index in (0, 0, 1)
    )

    assert {
        "text_offset": [0, 2],
        "token_logprobs": [-1.0, -2.0],
        "tokens": ["ab", "c"],
        "top_logprobs": [{"ab": -1.0}, {"c": -2.0, "d": -0.1}],
    } == first
    assert ([3, 5], [0, 2]) == (second["text_offset"], other["text_offset"])


@pytest.mark.parametrize("value", [float("-inf"), float("nan"), -1e9])
def test_a_log_probability_that_json_cannot_hold_is_openais_lowest(value):
    call = chat(stream=True, logprobs=True)

    (choice,) = choices(renderer(call).delta(delta("a", logprobs=[logprob("a", value)]), 0))

    assert -9999.0 == choice["logprobs"]["content"][0]["logprob"]


def test_log_probabilities_that_nobody_asked_for_are_left_out():
    (choice,) = choices(renderer(chat(stream=True)).delta(delta("a", logprobs=[logprob("a")]), 0))

    assert choice["logprobs"] is None


def test_a_token_without_text_still_has_its_log_probability():
    call = chat(stream=True, logprobs=True)

    (choice,) = choices(renderer(call).delta(delta("", logprobs=[logprob("\ufffd")]), 0))

    assert ("", 1) == (choice["delta"]["content"], len(choice["logprobs"]["content"]))


def test_tool_calls_come_in_pieces():
    shown = renderer(chat(stream=True))
    pieces = [ToolCallDelta(index=0, id="c1", name="f"), ToolCallDelta(index=0, arguments="{}")]

    first, second, ended = (
        choice
        for piece, finish in zip(pieces, [None, Finish.TOOL_CALLS], strict=True)
        for choice in choices(shown.delta(delta("", finish, tool_calls=[piece]), 0))
    )

    assert [
        {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
    ] == first["delta"]["tool_calls"]
    assert [{"index": 0, "function": {"arguments": "{}"}}] == second["delta"]["tool_calls"]
    assert "tool_calls" == ended["finish_reason"]


@pytest.mark.parametrize(("failing", "status", "kind"), FAILURES)
def test_a_stream_that_fails_ends_with_the_error_and_nothing_after_it(failing, status, kind):
    shown = renderer(chat(stream=True, n=2))

    text, error = events(shown.delta(failing, 0))

    assert "x" == text["choices"][0]["delta"]["content"]
    expected = failure_of(failing)
    assert expected is not None
    assert (status, kind) == (expected.status, expected.kind)
    assert {
        "error": {
            "message": str(expected),
            "type": kind,
            "param": expected.param,
            "code": expected.code,
        }
    } == error
    assert (b"", b"", b"") == (
        shown.delta(delta("y"), 1),
        shown.closing(USAGE),
        shown.error(expected),
    )


@pytest.mark.parametrize(
    "healthy", [delta("x"), delta("x", Finish.STOP, usage=USAGE), delta("x", Finish.LENGTH)]
)
def test_an_ordinary_delta_is_no_failure(healthy):
    assert failure_of(healthy) is None


def test_an_error_of_the_gateway_ends_a_stream_too():
    shown = renderer(completion(stream=True))

    (event,) = events(shown.error(ApiError(503, "no engine\u2028left", kind="server_error")))

    assert "no engine\u2028left" == event["error"]["message"]
    assert b"" == shown.closing(USAGE)


def test_payloads_are_the_same_chunks_without_framing_or_done():
    call = chat(stream=True, n=2, stream_options={"include_usage": True})
    framed, bare = renderer(call), payloads(call)
    deltas = [delta("a"), delta("é\u2028"), delta("b", Finish.STOP, stop_reason="b")]

    pairs = [(framed.opening(), bare.opening()), (framed.closing(USAGE), bare.closing(USAGE))]
    pairs += [(framed.delta(each, 1), bare.delta(each, 1)) for each in deltas]

    for sse, parts in pairs:
        assert sse.removesuffix(b"data: [DONE]\n\n") == b"".join(
            b"data: " + part + b"\n\n" for part in parts
        )


def test_payloads_end_with_the_error_too():
    bare = payloads(chat(stream=True))

    *_, error = bare.delta(delta("", Finish.TIMEOUT), 0)

    assert "timeout_error" == json.loads(error)["error"]["type"]
    assert ([], []) == (bare.closing(USAGE), bare.delta(delta("x"), 0))


def test_a_model_name_that_looks_like_the_mark_of_the_text_does_no_harm():
    call = chat(stream=True, model='"@text@" @text@ "')

    (event,) = events(renderer(call).delta(delta("x"), 0))

    assert ('"@text@" @text@ "', "x") == (event["model"], event["choices"][0]["delta"]["content"])


def test_the_usage_of_several_streams_is_their_sum():
    assert Usage(prompt_tokens=14, completion_tokens=10, cached_tokens=8) == total_usage(
        [USAGE, USAGE]
    )
