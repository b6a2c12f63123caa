"""The HTTP door over real sockets: paths, errors, streams, who may call."""

from __future__ import annotations

import json

import pytest

from services.gateway.call import ApiError
from services.gateway.openai.chat import parse_chat
from services.gateway.openai.limits import RequestLimits
from shared.keys import KeyFile, key_line
from tests.support.gateway_site import CHAT, FAST, Site, events, run


def test_a_chat_answer_in_one_piece():
    async def scenario(site: Site) -> None:
        answer = await site.post(CHAT)

        body = json.loads(answer.body)
        assert (200, "application/json") == (answer.status, answer.headers["content-type"])
        assert "length" == body["choices"][0]["finish_reason"]
        assert 5 == body["usage"]["completion_tokens"]
        assert body["id"] == answer.headers["x-request-id"] == answer.headers["hr-request-id"]

    run(scenario, engine=FAST)


def test_a_streamed_answer_begins_with_the_role_and_ends_with_done():
    async def scenario(site: Site) -> None:
        options = {"stream": True, "stream_options": {"include_usage": True}}

        answer = await site.post(CHAT | options, "X-Request-Id: my-own")

        *chunks, usage, done = events(answer.body)
        assert "text/event-stream; charset=utf-8" == answer.headers["content-type"]
        assert "my-own" == answer.headers["x-request-id"]
        assert chunks[0]["id"] == answer.headers["hr-request-id"]
        assert "assistant" == chunks[0]["choices"][0]["delta"]["role"]
        assert "length" == chunks[-1]["choices"][0]["finish_reason"]
        assert (5, []) == (usage["usage"]["completion_tokens"], usage["choices"])
        assert "[DONE]" == done

    run(scenario, engine=FAST)


def test_completions_of_several_prompts():
    async def scenario(site: Site) -> None:
        asked = {"model": "m", "prompt": ["a", "b"], "n": 2, "max_tokens": 3}

        answer = await site.post(asked, path="/v1/completions")

        assert [0, 1, 2, 3] == [c["index"] for c in json.loads(answer.body)["choices"]]

    run(scenario, engine=FAST)


def test_models_are_listed_and_found():
    async def scenario(site: Site) -> None:
        listed, found, missing = [
            await site.get(path) for path in ("/v1/models", "/v1/models/m", "/v1/models/x%2Fy")
        ]

        assert ["m"] == [entry["id"] for entry in json.loads(listed.body)["data"]]
        assert "m" == json.loads(found.body)["id"]
        assert (404, "model_not_found") == (
            missing.status,
            json.loads(missing.body)["error"]["code"],
        )

    run(scenario, engine=FAST)


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/", 404, None),
        ("GET", "/v1/models/", 404, None),
        ("POST", "/v1/embeddings", 404, None),
        ("GET", "/v1/chat/completions", 405, "POST"),
        ("DELETE", "/v1/models", 405, "GET, HEAD"),
        ("OPTIONS", "/v1/models", 405, "GET, HEAD"),
    ],
)
def test_wrong_paths_and_methods_get_error_objects(method, path, status, allow):
    async def scenario(site: Site) -> None:
        wire = await site.wire()
        wire.send(f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
        answer = await wire.answer()

        assert (status, allow) == (answer.status, answer.headers.get("allow"))
        assert "invalid_request_error" == json.loads(answer.body)["error"]["type"]

    run(scenario, engine=FAST)


@pytest.mark.parametrize(
    ("body", "fields", "status", "param"),
    [
        (b"{", (), 400, None),
        (CHAT | {"temperature": 3}, (), 400, "temperature"),
        (CHAT | {"model": "other"}, (), 404, "model"),
        (CHAT | {"max_tokens": 100_000}, (), 400, "max_tokens"),
        (CHAT, ("X-Request-Timeout: soon",), 400, "X-Request-Timeout"),
        (CHAT, ("X-Priority: royal",), 400, "X-Priority"),
        (CHAT, ("Content-Type: multipart/form-data; boundary=x",), 415, None),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_bad_requests_get_a_proper_status_also_where_a_stream_was_wanted(
    body, fields, status, param, is_streamed
):
    async def scenario(site: Site) -> None:
        asked = body | {"stream": is_streamed} if isinstance(body, dict) else body
        answer = await site.post(asked, *fields)

        error = json.loads(answer.body)["error"]
        assert (status, param) == (answer.status, error["param"])
        assert "application/json" == answer.headers["content-type"]

    run(scenario, engine=FAST)


def test_a_body_over_the_bound_gets_one_error_whoever_notices_it():
    limits = {"max_body_bytes": 500}

    async def scenario(site: Site) -> None:
        answer = await site.post(b"x" * 501)

        with pytest.raises(ApiError) as parsed:
            parse_chat(b"x" * 501, RequestLimits(**limits), seed=1)
        assert (413, parsed.value.body()) == (answer.status, answer.body)
        assert "request_too_large" == json.loads(answer.body)["error"]["code"]

    run(scenario, limits=limits)


@pytest.mark.parametrize(
    "content_type",
    ["application/json; charset=utf-8", "application/x-www-form-urlencoded", "text/plain"],
)
def test_content_types_that_clients_say_about_json_are_taken(content_type):
    async def scenario(site: Site) -> None:
        assert 200 == (await site.post(CHAT, f"Content-Type: {content_type}")).status

    run(scenario, engine=FAST)


def test_health_is_the_process_and_ready_is_the_service():
    async def scenario(site: Site) -> None:
        health, ready = await site.get("/health"), await site.get("/ready")
        asked = await site.post(CHAT)

        assert (200, 503) == (health.status, ready.status)
        assert "no engine is ready" == json.loads(ready.body)["reason"]
        assert (503, "5") == (asked.status, asked.headers["retry-after"])
        await site.world.add_engine()
        assert 200 == (await site.get("/ready")).status

    run(scenario)


def test_metrics_and_openapi_are_served():
    async def scenario(site: Site) -> None:
        await site.post(CHAT)
        metrics, openapi = await site.get("/metrics"), await site.get("/openapi.json")

        line = 'headrace_gateway_requests_total{class="default",door="http",kind="chat",outcome="finished"} 1.0'
        assert line in metrics.body.decode()
        assert 'headrace_gateway_tokens_total{direction="out"} 5.0' in metrics.body.decode()
        assert "/v1/chat/completions" in json.loads(openapi.body)["paths"]

    run(scenario, engine=FAST)


def test_only_who_has_a_key_may_call(tmp_path):
    path = tmp_path / "keys"
    path.write_text(key_line("alice", "ka"))

    async def scenario(site: Site) -> None:
        none = await site.post(CHAT)
        wrong = await site.post(CHAT, "Authorization: Bearer kb")
        models = await site.get("/v1/models")
        right = await site.post(CHAT, "Authorization: Bearer ka")

        assert [401, 401, 401, 200] == [a.status for a in (none, wrong, models, right)]
        assert "Bearer" == none.headers["www-authenticate"]
        assert "missing_api_key" == json.loads(none.body)["error"]["code"]
        assert "invalid_api_key" == json.loads(wrong.body)["error"]["code"]
        assert 200 == (await site.get("/health")).status

    run(scenario, engine=FAST, keys=KeyFile(path))


def test_pages_of_the_web_may_not_use_a_gateway_without_keys():
    async def scenario(site: Site) -> None:
        answer = await site.post(CHAT, "Origin: http://evil.example")
        models = await site.get("/v1/models", "Origin: http://evil.example")

        assert (403, "origin_not_allowed") == (
            answer.status,
            json.loads(answer.body)["error"]["code"],
        )
        assert "access-control-allow-origin" not in models.headers

    run(scenario, engine=FAST)


def test_pages_of_allowed_origins_may_call():
    async def scenario(site: Site) -> None:
        wire = await site.wire()
        wire.send(
            b"OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\nOrigin: https://chat.example\r\n"
            b"Access-Control-Request-Method: POST\r\n\r\n"
        )
        preflight = await wire.answer()
        answer = await site.post(CHAT | {"stream": True}, "Origin: https://chat.example")
        error = await site.post(b"{", "Origin: https://chat.example")

        assert (204, "POST") == (
            preflight.status,
            preflight.headers["access-control-allow-methods"],
        )
        for one in (preflight, answer, error):
            assert "https://chat.example" == one.headers["access-control-allow-origin"]
        assert 403 == (await site.post(CHAT, "Origin: https://other.example")).status

    run(scenario, engine=FAST, api={"cors_origins": ("https://chat.example",)})
