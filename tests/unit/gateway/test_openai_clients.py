"""What clients make of our bytes: the official one, and one that splits lines as Python's `str.splitlines` does."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai._streaming import SSEDecoder
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from services.gateway.call import ApiError, Call
from services.gateway.openai.answer import AnswerBuilder
from services.gateway.openai.render import ChunkRenderer
from shared.messages import Delta, Finish, StreamError, ToolCallDelta
from tests.support.openai_calls import (
    CREATED_S,
    REQUEST_ID,
    USAGE,
    chat,
    completion,
    delta,
    logprob,
)

LINE_BREAKS = "\r\n\v\f\x1c\x1d\x1e\x85\u2028\u2029"
TEXT = st.text(
    st.one_of(st.sampled_from(LINE_BREAKS + '"\\:d \0'), st.characters(codec="utf-8")), max_size=12
)
OPTIONS = {"stream": True, "stream_options": {"include_usage": True}}


def streamed(call: Call, *pairs: tuple[Delta, int]) -> bytes:
    shown = ChunkRenderer(call, request_id=REQUEST_ID, created=CREATED_S)
    return b"".join(
        [
            shown.opening(),
            *(shown.delta(each, choice) for each, choice in pairs),
            shown.closing(USAGE),
        ]
    )


def answered(call: Call, *pairs: tuple[Delta, int]) -> bytes:
    built = AnswerBuilder(call, request_id=REQUEST_ID, created=CREATED_S)
    for each, choice in pairs:
        built.add(each, choice)
    return built.body(USAGE)


def client(
    body: bytes, *, status: int = 200, content_type: str = "text/event-stream"
) -> openai.OpenAI:
    """The official client, in front of a server that answers with these bytes."""

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, content=body, headers={"content-type": content_type})

    transport = httpx2.MockTransport(answer)
    return openai.OpenAI(
        api_key="none",
        base_url="http://localhost",
        max_retries=0,
        http_client=httpx2.Client(transport=transport),
    )


def ask(body: bytes) -> Iterator[ChatCompletionChunk]:
    return client(body).chat.completions.create(model="m", messages=[], stream=True)


def official_events(data: bytes, cut: int) -> list[dict]:
    pieces = [data[start : start + cut] for start in range(0, len(data), cut)]
    found = [event.data for event in SSEDecoder().iter_bytes(iter(pieces))]
    assert "[DONE]" == found.pop()
    return [json.loads(each) for each in found]


def splitlines_events(data: bytes) -> list[dict]:
    lines = data.decode().splitlines()
    assert all("" == line for line in lines[1::2])
    found = [line.removeprefix("data: ") for line in lines[::2]]
    assert "[DONE]" == found.pop()
    return [json.loads(each) for each in found]


def chat_text(events: list[dict]) -> str:
    return "".join(
        choice["delta"].get("content", "") for event in events for choice in event["choices"]
    )


@given(st.lists(TEXT, max_size=8), st.integers(1, 50))
def test_text_survives_every_way_to_split_events(texts, cut):
    pairs = [*((delta(text), 0) for text in texts), (delta("", Finish.STOP), 0)]

    data = streamed(chat(**OPTIONS), *pairs)

    assert (
        "".join(texts)
        == chat_text(official_events(data, cut))
        == chat_text(splitlines_events(data))
    )
    assert (
        "".join(texts) == json.loads(answered(chat(), *pairs))["choices"][0]["message"]["content"]
    )


@given(st.lists(st.tuples(TEXT, st.integers(0, 3), st.booleans()), max_size=12))
def test_streamed_chunks_add_up_to_the_whole_completion(pieces):
    fields = {"prompt": ["a", "b"], "n": 2, "logprobs": 1}
    pairs = [
        (delta(text, logprobs=[logprob(text, b=-1.0)] if with_logprobs else None), index)
        for text, index, with_logprobs in pieces
    ]
    pairs += [(delta("", Finish.LENGTH, stop_reason=None), index) for index in range(4)]

    chunks = official_events(streamed(completion(**fields, stream=True), *pairs), 1000)
    whole = json.loads(answered(completion(**fields), *pairs))

    for choice in whole["choices"]:
        mine = [
            part
            for chunk in chunks
            for part in chunk["choices"]
            if part["index"] == choice["index"]
        ]
        assert choice["text"] == "".join(part["text"] for part in mine)
        assert choice["finish_reason"] == mine[-1]["finish_reason"]
        for column, values in choice["logprobs"].items():
            assert values == [
                value for part in mine if part["logprobs"] for value in part["logprobs"][column]
            ]


@given(TEXT)
def test_the_short_way_makes_the_same_bytes_as_the_long_one(text):
    for call in (chat(**OPTIONS), completion(stream=True)):
        shown = ChunkRenderer(call, request_id=REQUEST_ID, created=CREATED_S)

        short = shown.delta(delta(text), 0)

        assert short == shown.delta(delta(text, stop_reason="no plain delta"), 0)


def test_the_official_client_reads_a_stream():
    call = chat(**OPTIONS, logprobs=True, top_logprobs=1)
    pairs = [
        (delta("a", logprobs=[logprob("a", b=-1.0)]), 0),
        (delta("", tool_calls=[ToolCallDelta(index=0, id="c", name="f", arguments="{}")]), 0),
        (delta("é", Finish.TOOL_CALLS, stop_reason=5), 0),
    ]

    role, text, tool, last, ended, usage = ask(streamed(call, *pairs))

    assert ("assistant", "") == (role.choices[0].delta.role, role.choices[0].delta.content)
    assert ("a", -1.0) == (
        text.choices[0].delta.content,
        text.choices[0].logprobs.content[0].top_logprobs[0].logprob,
    )
    assert "f" == tool.choices[0].delta.tool_calls[0].function.name
    assert "é" == last.choices[0].delta.content
    assert ("tool_calls", 5) == (ended.choices[0].finish_reason, ended.choices[0].stop_reason)
    assert ([], 12, 4) == (
        usage.choices,
        usage.usage.total_tokens,
        usage.usage.prompt_tokens_details.cached_tokens,
    )


@pytest.mark.parametrize(
    "failing",
    [
        delta("", Finish.TIMEOUT),
        delta("", Finish.ERROR),
        delta("", error=StreamError(message="the engine died")),
    ],
)
def test_the_official_client_raises_where_a_stream_fails(failing):
    chunks = []

    with pytest.raises(openai.APIError) as caught:
        chunks.extend(ask(streamed(chat(stream=True), (delta("half"), 0), (failing, 0))))

    assert ["", "half"] == [chunk.choices[0].delta.content for chunk in chunks]
    assert caught.value.message
    assert caught.value.code in {"request_timeout", "engine_failed"}


def test_the_official_client_names_the_field_of_a_refusal():
    with pytest.raises(ApiError) as refused:
        chat(temperature=3)

    with pytest.raises(openai.BadRequestError) as caught:
        client(refused.value.body(), status=400, content_type="application/json").models.list()

    assert ("temperature", "invalid_request_error") == (caught.value.param, caught.value.type)


WHOLE = [
    (delta("a", logprobs=[logprob("a", b=-1.0)]), 0),
    (delta("b", Finish.LENGTH, stop_reason="x"), 0),
    (delta("", tool_calls=[ToolCallDelta(index=0, id="c", name="f", arguments="{}")]), 1),
    (delta("", Finish.STOP), 1),
]


def test_whole_answers_are_what_the_official_types_say():
    talked = ChatCompletion.model_validate_json(
        answered(chat(n=2, logprobs=True, top_logprobs=1), *WHOLE), strict=True
    )
    continued = Completion.model_validate_json(
        answered(completion(n=2, logprobs=1), *WHOLE), strict=True
    )

    assert ["ab", None] == [choice.message.content for choice in talked.choices]
    assert ["ab", ""] == [choice.text for choice in continued.choices]


def test_chunks_are_what_the_official_types_say():
    talk = official_events(
        streamed(chat(n=2, logprobs=True, top_logprobs=1, **OPTIONS), *WHOLE), 100
    )
    text = official_events(streamed(completion(n=2, logprobs=1, **OPTIONS), *WHOLE), 100)

    for event in talk:
        assert_only_known(ChatCompletionChunk.model_validate_json(json.dumps(event), strict=True))
    for event in text:
        # The type is that of a whole answer: it takes no null for the reason to finish, which OpenAI's own chunks have.
        for choice in event["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        assert_only_known(Completion.model_validate_json(json.dumps(event), strict=True))


def assert_only_known(model: ChatCompletionChunk | Completion) -> None:
    assert not model.model_extra
    for choice in model.choices:
        assert set(choice.model_extra or ()) <= {"stop_reason"}
