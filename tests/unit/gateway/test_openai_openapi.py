"""The OpenAPI document: valid, complete, and true to what the code takes and sends."""

from __future__ import annotations

import json

import jsonschema
import msgspec
import openapi_spec_validator
import pytest

from services.gateway.call import invalid
from services.gateway.openai import unsupported
from services.gateway.openai.answer import AnswerBuilder
from services.gateway.openai.chat import ChatBody
from services.gateway.openai.completion import CompletionBody
from services.gateway.openai.limits import RequestLimits
from services.gateway.openai.models import model, model_list_body
from services.gateway.openai.openapi import ERRORS, document, field_notes
from services.gateway.openai.render import PayloadRenderer
from services.gateway.openai.responses import ErrorBody
from shared.messages import Finish, ToolCallDelta
from tests.support.openai_calls import (
    CREATED_S,
    LIMITS,
    REQUEST_ID,
    USAGE,
    chat,
    completion,
    delta,
    logprob,
)

DOCUMENT = json.loads(document(version="1.2.3", limits=LIMITS))
SCHEMAS = DOCUMENT["components"]["schemas"]
DELTAS = [
    delta("a", logprobs=[logprob("a", b=-1.0)]),
    delta(
        "",
        tool_calls=[
            ToolCallDelta(index=0, id="c", name="f"),
            ToolCallDelta(index=0, arguments="{}"),
        ],
    ),
    delta("b", Finish.STOP, stop_reason=3),
]
CALLS = {
    "chat": chat(
        stream=True, stream_options={"include_usage": True}, logprobs=True, top_logprobs=1
    ),
    "completion": completion(stream=True, stream_options={"include_usage": True}, logprobs=1),
}


def validate(schema: str, body: bytes) -> None:
    root = {"$ref": f"#/components/schemas/{schema}", "components": DOCUMENT["components"]}
    jsonschema.Draft202012Validator(root).validate(json.loads(body))


def test_the_document_is_valid():
    openapi_spec_validator.validate(DOCUMENT)


def test_every_path_of_the_door_is_described():
    assert {
        "/v1/chat/completions": {"post"},
        "/v1/completions": {"post"},
        "/v1/models": {"get"},
        "/v1/models/{id}": {"get"},
        "/health": {"get"},
        "/ready": {"get"},
        "/metrics": {"get"},
        "/openapi.json": {"get"},
    } == {path: set(item) & {"get", "post"} for path, item in DOCUMENT["paths"].items()}


def test_every_error_has_openais_error_object():
    for path in ("/v1/chat/completions", "/v1/completions"):
        assert {"200", *ERRORS} == set(DOCUMENT["paths"][path]["post"]["responses"])
    for status in ERRORS:
        content = DOCUMENT["components"]["responses"][status]["content"]
        assert {"$ref": "#/components/schemas/ErrorBody"} == content["application/json"]["schema"]


def test_an_error_has_the_shape_that_is_described():
    body = invalid("no", param="n").body()

    described = msgspec.json.decode(body, type=ErrorBody, strict=True).error

    assert ("no", "n") == (described.message, described.param)
    validate("ErrorBody", body)


@pytest.mark.parametrize(
    ("call", "schema"), [(CALLS["chat"], "ChatCompletion"), (CALLS["completion"], "Completion")]
)
def test_a_whole_answer_has_the_shape_that_is_described(call, schema):
    built = AnswerBuilder(call, request_id=REQUEST_ID, created=CREATED_S)
    for each in DELTAS:
        built.add(each, 0)

    validate(schema, built.body(USAGE))


@pytest.mark.parametrize(
    ("call", "schema"),
    [(CALLS["chat"], "ChatCompletionChunk"), (CALLS["completion"], "Completion")],
)
def test_every_chunk_has_the_shape_that_is_described(call, schema):
    shown = PayloadRenderer(call, request_id=REQUEST_ID, created=CREATED_S)

    chunks = [
        *shown.opening(),
        *(chunk for each in DELTAS for chunk in shown.delta(each, 0)),
        *shown.closing(USAGE),
    ]

    assert len(chunks) >= 4
    for chunk in chunks:
        validate(schema, chunk)


def test_the_list_of_models_has_the_shape_that_is_described():
    validate(
        "ModelList",
        model_list_body([model("a", created=1), model("b", created=1, max_model_len=5)]),
    )


def test_a_note_is_of_a_field_that_there_is():
    known = {*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__}

    assert set() == set(field_notes(LIMITS)) - known


def test_unsupported_fields_are_described_as_that():
    for name, entry in unsupported.CHAT.items():
        field = SCHEMAS["ChatBody"]["properties"][name]
        assert [None, *entry.harmless] == field["enum"]
        assert entry.reason in field["description"]


def test_bounds_come_from_the_limits():
    described = json.loads(document(version="1", limits=RequestLimits(max_n=3)))

    assert (
        "At most 3 "
        in described["components"]["schemas"]["ChatBody"]["properties"]["n"]["description"]
    )
