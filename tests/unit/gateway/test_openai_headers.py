"""Headers that change a call, and the bodies about models."""

from __future__ import annotations

import json

import pytest
from openai.types import Model

from services.gateway.call import ApiError
from services.gateway.http.headers import Headers
from services.gateway.openai.headers import NATS_HEADERS, merge_headers
from services.gateway.openai.models import model, model_body, model_list_body, model_not_found
from shared.messages import Priority
from tests.support.openai_calls import LIMITS, chat


def test_without_headers_a_call_is_as_it_was():
    call = chat(service_tier="flex")

    assert call is merge_headers(call, {}, LIMITS)


@pytest.mark.parametrize(
    ("text", "priority"), [(" Batch ", Priority.BATCH), ("interactive", Priority.INTERACTIVE)]
)
def test_a_header_beats_the_body(text, priority):
    merged = merge_headers(chat(service_tier="default"), {"x-priority": text}, LIMITS)

    assert (priority, None) == (merged.priority, merged.timeout_s)


@pytest.mark.parametrize(
    ("text", "timeout_s"), [("0.1", 0.1), (" 30 ", 30.0), ("3600", 3600.0), ("1.25", 1.25)]
)
def test_a_timeout_is_in_seconds(text, timeout_s):
    merged = merge_headers(chat(service_tier="flex"), {"x-request-timeout": text}, LIMITS)

    assert (Priority.BATCH, timeout_s) == (merged.priority, merged.timeout_s)


@pytest.mark.parametrize(
    "text", ["", "0", "0.09", "-1", "3601", "1e2", "nan", "inf", "10s", "1_0", "١", "9" * 400]
)
def test_another_timeout_is_refused_by_the_headers_name(text):
    with pytest.raises(ApiError, match="X-Request-Timeout") as caught:
        merge_headers(chat(), {"x-request-timeout": text}, LIMITS)

    assert (400, "X-Request-Timeout") == (caught.value.status, caught.value.param)
    assert len(caught.value.body()) < 400


@pytest.mark.parametrize("text", ["", "high", "batch, interactive", "x" * 1000])
def test_another_priority_is_refused_by_the_headers_name(text):
    with pytest.raises(ApiError, match="interactive, default, batch") as caught:
        merge_headers(chat(), {"x-priority": text}, LIMITS)

    assert "X-Priority" == caught.value.param


def test_nats_has_its_own_names():
    headers = {"Hr-Priority": "batch", "Hr-Timeout": "5"}

    merged = merge_headers(chat(), headers, LIMITS, names=NATS_HEADERS)

    assert (Priority.BATCH, 5.0) == (merged.priority, merged.timeout_s)
    with pytest.raises(ApiError, match="Hr-Timeout"):
        merge_headers(chat(), {"Hr-Timeout": "x"}, LIMITS, names=NATS_HEADERS)


def test_the_servers_own_header_type_will_do():
    headers = Headers([(b"X-Priority", b"batch")])

    assert Priority.BATCH == merge_headers(chat(), headers, LIMITS).priority


def test_models_are_listed_by_name():
    body = json.loads(
        model_list_body([model("b", created=1), model("a", created=2, max_model_len=8192)])
    )

    assert "list" == body["object"]
    assert ["a", "b"] == [entry["id"] for entry in body["data"]]
    assert {
        "id": "a",
        "object": "model",
        "created": 2,
        "owned_by": "headrace",
        "max_model_len": 8192,
    } == body["data"][0]


def test_a_model_is_what_the_official_client_expects():
    described = Model.model_validate_json(model_body(model("a", created=1)), strict=True)

    assert ("a", 1, "model", "headrace") == (
        described.id,
        described.created,
        described.object,
        described.owned_by,
    )


def test_a_model_that_nobody_serves_is_named():
    error = model_not_found("x" * 100_000)

    assert (404, "model_not_found", "model") == (error.status, error.code, error.param)
    assert len(error.body()) < 400
