"""The OpenAI adapter's pure parts: events from bytes, pieces from events, bodies from jobs, refusals from responses."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.adapters.openai_body import request_of
from services.engine.adapters.openai_chunks import BrokenStreamError, ChunkReader
from services.engine.adapters.openai_models import find_model
from services.engine.adapters.openai_refusal import refusal_of
from services.engine.adapters.sse import MAX_EVENT_BYTES, EventTooBigError, SseReader
from services.engine.ports import EngineFailedError, Job, RefusedError
from services.engine.settings import OpenAiSettings
from shared.codec import decode, encode
from shared.ids import EngineId, GatewayId, RequestId, StreamNo
from shared.messages import (
    ChatPrompt,
    Delta,
    Finish,
    Priority,
    RefuseReason,
    Sampling,
    StreamError,
    TextPrompt,
    TokenBatch,
    TokensPrompt,
)

# --- events

FRAGMENTS = [
    {"delta": {"content": "a"}},
    {"delta": {"content": "\ud800"}},
    {"delta": {"content": None, "tool_calls": [{"index": 10**30}]}},
    {"delta": {"tool_calls": [{"index": -1, "function": {"name": "f", "arguments": None}}]}},
    {"text": "b", "index": 1, "finish_reason": "stop"},
    {"text": "", "index": 0, "finish_reason": "length", "stop_reason": 10**30},
    {"text": "c", "index": -1},
    {"logprobs": {"content": [{"token": "a", "logprob": -1, "bytes": [300]}]}},
    {"logprobs": {"content": [{"token": "a", "logprob": -1, "bytes": [-1]}]}},
    {"logprobs": {"content": [{"token": "a", "logprob": -1e308, "top_logprobs": None}]}},
    {"logprobs": {"tokens": ["a", "b"], "token_logprobs": [None], "top_logprobs": [None]}},
    {"logprobs": {"tokens": ["a"], "token_logprobs": [-1], "top_logprobs": []}},
]
STREAM_PIECES = [
    *(b"data: %b\n\n" % json.dumps({"choices": [choice]}).encode() for choice in FRAGMENTS),
    *(
        b"data: %b\n\n" % json.dumps({"usage": {"prompt_tokens": count}}).encode()
        for count in (10**30, -5, 3, None, 1.5, "3")
    ),
    *(
        b"data: %b\n\n" % json.dumps({"error": error}).encode()
        for error in ({"message": "\ud800"}, {"code": 10**30}, [], "x", None, {"code": 400})
    ),
    b'data: {"error":' + b'{"x":' * 990 + b"1" + b"}" * 990 + b"}\n\n",
    b'data: {"choices":[{"logprobs":{"content":[{"token":"a","logprob":1e999}]}}]}\n\n',
    b'data: {"choices":[{"logprobs":{"content":[{"token":"a","logprob":NaN}]}}]}\n\n',
    *(b"data: [DONE]\n\n", b"data:", b"\n", b"\r\n\r\n", b": ping\n", b"event: error\n", b"\0"),
]


@given(
    st.lists(
        st.binary(max_size=30).filter(lambda b: b"\n" not in b and b"\r" not in b), max_size=8
    ),
    st.lists(st.integers(1, 7), max_size=60),
    st.sampled_from([b"\n", b"\r\n"]),
)
def test_events_come_out_whole_however_they_are_cut(datas, cuts, line_end):
    stream = b"".join(b": ping" + line_end + b"data: " + d + line_end * 2 for d in datas)
    reader, found = SseReader(), []
    for cut in cuts:
        found += reader.feed(stream[:cut])
        stream = stream[cut:]
    found += reader.feed(stream)

    assert found == datas


def test_data_lines_of_one_event_are_joined():
    assert [b"a\nb"] == SseReader().feed(b"event: x\ndata: a\ndata:b\nid: 7\n\n")


def test_an_endless_event_is_given_up():
    reader = SseReader()
    for _ in range(MAX_EVENT_BYTES // 1000):
        reader.feed(b"x" * 1000)

    with pytest.raises(EventTooBigError):
        reader.feed(b"x" * 1000)


def test_endless_empty_lines_of_data_are_given_up():
    reader = SseReader()
    reader.feed(b"data:\n" * (MAX_EVENT_BYTES // 5))

    with pytest.raises(EventTooBigError):
        reader.feed(b"data:\n")


@given(st.lists(st.binary(max_size=40) | st.sampled_from(STREAM_PIECES), max_size=20))
def test_no_stream_does_more_than_break_and_what_it_gives_can_travel(parts):
    events, reader = SseReader(), ChunkReader(choices=2, prompt_tokens=1)
    pieces = []
    try:
        for part in parts:
            for found in events.feed(part):
                pieces += reader.read(found)
        pieces += reader.end()
    except BrokenStreamError as broken:
        pieces += reader.fail(broken.error)
    for number, piece in enumerate(pieces):
        fields = (StreamNo(1), number, piece.choice, piece.text, piece.token_ids)
        travelling = Delta(*fields, piece.finish, piece.extra)
        batch = TokenBatch(gateway=GatewayId("g"), engine=EngineId("e"), deltas=[travelling])
        assert batch == decode(TokenBatch, encode(batch))


# --- pieces


def event(**fields) -> bytes:
    return json.dumps(fields).encode()


def chat(text: str = "", finish: str | None = None, index: int = 0, **more) -> bytes:
    delta = {"content": text, **more}
    return event(choices=[{"index": index, "delta": delta, "finish_reason": finish}])


def test_the_usage_after_the_finish_joins_the_last_piece():
    reader = ChunkReader(choices=1, prompt_tokens=99)

    pieces = reader.read(chat("Hi"))
    pieces += reader.read(chat("", "stop"))
    assert len(pieces) == 1
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    pieces += reader.read(event(choices=[], usage=usage))
    pieces += reader.read(b"[DONE]")

    assert reader.is_complete
    assert pieces[-1].finish is Finish.STOP
    used = pieces[-1].extra.usage
    assert (3, 1, 2) == (used.prompt_tokens, used.completion_tokens, used.cached_tokens)


def test_only_the_last_choice_waits_for_the_usage():
    reader = ChunkReader(choices=2, prompt_tokens=1)

    assert [1] == [piece.choice for piece in reader.read(chat("a", "length", index=1))]
    assert reader.read(chat("b", "stop")) == []
    assert [0] == [piece.choice for piece in reader.end()]


def test_roles_and_empty_chunks_are_no_pieces():
    reader = ChunkReader(choices=1, prompt_tokens=1)

    assert reader.read(event(choices=[{"index": 0, "delta": {"role": "assistant"}}])) == []
    assert reader.read(event(choices=[{"index": 0, "delta": {"content": None}}], usage=None)) == []
    assert reader.read(event(object="ping", error=None)) == []


def test_tool_calls_come_in_pieces():
    reader = ChunkReader(choices=1, prompt_tokens=1)
    head = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
    tail = {"index": 0, "function": {"arguments": "{}"}}

    pieces = reader.read(chat(tool_calls=[head])) + reader.read(chat(tool_calls=[tail]))
    reader.read(chat("", "tool_calls"))
    pieces += reader.end()

    calls = [call for piece in pieces for call in piece.extra.tool_calls or ()]
    assert [("c1", "f", ""), (None, None, "{}")] == [(c.id, c.name, c.arguments) for c in calls]
    assert pieces[-1].finish is Finish.TOOL_CALLS


def test_both_shapes_of_logprobs_are_read():
    entry = {"token": "é", "logprob": -1.0, "bytes": [195, 169], "top_logprobs": []}
    old = {"tokens": ["é"], "token_logprobs": [-1.0], "top_logprobs": [{"é": -1.0, "e": -2.0}]}
    new_piece, old_piece = (
        ChunkReader(choices=1, prompt_tokens=1).read(
            event(choices=[{"index": 0, "text": "é", "logprobs": logprobs}])
        )[0]
        for logprobs in ({"content": [entry]}, old)
    )

    for piece, count in ((new_piece, 0), (old_piece, 2)):
        (logprob,) = piece.extra.logprobs
        assert ("é", -1.0, "é".encode()) == (logprob.token, logprob.logprob, logprob.token_bytes)
        assert len(logprob.top) == count


def test_an_answer_that_was_whole_survives_a_late_break():
    reader = ChunkReader(choices=1, prompt_tokens=1)
    reader.read(chat("Hi", "stop"))

    (piece,) = reader.fail(StreamError(message="reset"))

    assert ("Hi", Finish.STOP) == (piece.text, piece.finish)
    assert piece.extra.usage.completion_tokens == 1


def test_an_early_end_is_an_error():
    reader = ChunkReader(choices=1, prompt_tokens=1)
    reader.read(chat("Hi"))

    with pytest.raises(BrokenStreamError, match="before the answer was complete"):
        reader.read(b"[DONE]")


@given(st.binary(max_size=80))
def test_no_bytes_do_more_than_break_the_stream(data):
    try:
        ChunkReader(choices=1, prompt_tokens=1).read(data)
    except BrokenStreamError as broken:
        assert broken.error.message  # noqa: PT017 - most bytes break it, some are harmless


# --- bodies


def body_of(prompt, **sampling):
    job = Job(
        key="g:1",
        request=RequestId("r"),
        prompt=prompt,
        sampling=Sampling(**sampling),
        priority=Priority.DEFAULT,
        trace={},
    )
    path, body = request_of(job, model="m")
    return path, json.loads(body)


def test_the_old_endpoint_is_told_that_there_is_no_limit():
    path, body = body_of(TokensPrompt(token_ids=[1, 2]), logprobs=2)

    assert path == "/completions"
    assert body["prompt"] == [1, 2]
    assert body["max_tokens"] is None
    assert body["logprobs"] == 2


def test_a_plain_chat_has_no_field_too_many():
    path, body = body_of(ChatPrompt(messages_json=b"[]"))

    assert path == "/chat/completions"
    assert {"model", "stream", "stream_options", "messages"} == set(body)


@pytest.mark.parametrize("messages", [b'[],"model":"other"', b"[", b"\xff", b""])
def test_messages_cannot_add_fields_around_them(messages):
    with pytest.raises(RefusedError) as caught:
        body_of(ChatPrompt(messages_json=messages))

    assert (RefuseReason.INVALID, "messages") == (caught.value.reason, caught.value.param)


def test_every_set_field_is_sent():
    _, body = body_of(
        ChatPrompt(messages_json=b"[]"),
        temperature=0.0,
        n=2,
        stop=("a",),
        logprobs=0,
        logit_bias={5: -1.0},
        json_schema=b'{"type":"object"}',
        ignore_eos=True,
        min_tokens=3,
        repetition_penalty=1.1,
        presence_penalty=0.5,
    )

    assert body["temperature"] == 0.0
    assert (body["n"], body["stop"], body["min_tokens"]) == (2, ["a"], 3)
    assert (body["logprobs"], body["top_logprobs"]) == (True, 0)
    assert body["logit_bias"] == {"5": -1.0}
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert (body["ignore_eos"], body["repetition_penalty"]) == (True, 1.1)


# --- refusals and models


def test_a_page_for_people_becomes_one_line():
    page = "<html>\n<h1>Bad Gateway</h1>" + "x" * 1000

    refusal = refusal_of(502, {}, page.encode())

    assert refusal.reason is RefuseReason.NOT_READY
    assert "\n" not in str(refusal)
    assert len(str(refusal)) < 300


@given(st.integers(100, 599), st.binary(max_size=60))
def test_every_response_is_some_refusal(status, body):
    assert refusal_of(status, {"Retry-After": "soon"}, body).retry_after_s is None


CARDS = {
    "vllm": {"id": "a", "max_model_len": 4096, "owned_by": "vllm"},
    "llama": {"id": "b", "meta": {"n_ctx_train": 8192}},
    "silent": {"id": "c"},
}


@pytest.mark.parametrize(
    ("card", "configured", "expected"),
    [("vllm", 0, 4096), ("vllm", 100, 100), ("llama", 0, 8192), ("silent", 7, 7)],
)
def test_the_context_length_is_told_or_set(card, configured, expected):
    body = json.dumps({"data": [CARDS[card]]}).encode()
    settings = OpenAiSettings(url="http://x/v1", max_model_len=configured)

    assert expected == find_model(body, settings).max_model_len


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"data": []}', "openai.model"),
        (b"<html>", "openai.url"),
        (json.dumps({"data": [CARDS["silent"]]}).encode(), "openai.max_model_len"),
    ],
)
def test_a_server_without_a_model_says_what_to_set(body, says):
    with pytest.raises(EngineFailedError, match=says):
        find_model(body, OpenAiSettings(url="http://x/v1"))


def test_a_text_prompt_goes_to_the_old_endpoint():
    assert body_of(TextPrompt(text="é"))[1]["prompt"] == "é"
