"""The HTTP door over real sockets, with a real engine service behind a memory bus: paths, errors, streams, who may call, who leaves."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shared.keys import KeyFile, key_line
from tests.support.gateway_world import GatewayWorld, play_live
from tests.support.http_shell import Answer, Wire, until

CHAT = {
    "model": "m",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 5,
    "ignore_eos": True,
    "seed": 3,
}
LONG = CHAT | {"max_tokens": 4000}


class Site:
    """A running gateway and its clients."""

    def __init__(self, world: GatewayWorld) -> None:
        self.world = world
        self.wires: list[Wire] = []

    @property
    def port(self) -> int:
        return self.world.http[0].server.port

    async def wire(self) -> Wire:
        wire = await Wire.open(self.port)
        self.wires.append(wire)
        return wire

    async def get(self, path: str, *fields: str) -> Answer:
        wire = await self.wire()
        wire.get(path, *fields)
        return await wire.answer()

    async def post(self, body: Any, *fields: str, path: str = "/v1/chat/completions") -> Answer:
        wire = await self.wire()
        wire.post(path, body if isinstance(body, bytes) else json.dumps(body).encode(), *fields)
        return await wire.answer()

    async def begin(self, body: Any, *fields: str) -> Wire:
        wire = await self.wire()
        wire.post("/v1/chat/completions", json.dumps(body).encode(), *fields)
        return wire


def run(
    scenario: Callable[[Site], Awaitable[None]], *, engine: dict[str, Any] | None = None, **gateway
) -> None:
    """Run a scenario against a gateway and one engine; nothing may be left."""

    async def whole(world: GatewayWorld) -> None:
        http = {"port": 0, "sweep_s": 0.05} | gateway.pop("http", {})
        await world.add_gateway(with_http=True, http=http, **gateway)
        if engine is not None:
            await world.add_engine(**engine)
        await until(lambda: world.http[0].url)
        site = Site(world)
        try:
            async with asyncio.timeout(30):
                await scenario(site)
        finally:
            for wire in site.wires:
                wire.close()
        await world.assert_nothing_is_left()

    play_live(whole)


FAST = {"step_s": 0.001}
SLOW = {"step_s": 0.01}


def events(body: bytes) -> list[Any]:
    """Return the data of server-sent events; `[DONE]` as a string."""
    lines = [line for line in body.decode().split("\n\n") if line]
    assert all(line.startswith(("data: ", ":")) for line in lines)
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [text if text == "[DONE]" else json.loads(text) for text in data]


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


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_client_that_leaves_stops_the_engine_within_a_step_or_two(is_streamed, how):
    async def scenario(site: Site) -> None:
        (engine,) = site.world.engines
        wire = await site.begin(LONG | {"stream": is_streamed})
        await until(lambda: engine.live)
        if is_streamed:
            await wire.head()

        getattr(wire, how)()
        await until(lambda: not engine.live, timeout_s=0.5)

        await until(lambda: not len(site.world.gateway.calls))

    run(scenario, engine=SLOW)


def test_a_client_that_leaves_before_the_first_token_stops_the_prefill():
    async def scenario(site: Site) -> None:
        (engine,) = site.world.engines
        wire = await site.begin(LONG | {"stream": True})
        await until(lambda: engine.live)

        wire.close()

        await until(lambda: not engine.live, timeout_s=0.5)

    run(scenario, engine={"prefill_tokens_per_s": 1.0})


def test_a_dead_engine_in_mid_stream_is_an_error_event_without_done():
    async def scenario(site: Site) -> None:
        (engine,) = site.world.engines
        wire = await site.begin(LONG | {"stream": True})
        await wire.head()
        body = await wire.chunk()

        engine.kill()
        while piece := await wire.chunk():
            body += piece

        *_, last = events(body)
        assert "engine_failed" == last["error"]["code"]
        assert b"[DONE]" not in body

    run(scenario, engine=SLOW)


def test_comments_keep_the_connection_alive_while_the_first_token_takes_long():
    async def scenario(site: Site) -> None:
        wire = await site.begin(CHAT | {"stream": True})
        await wire.head()
        chunks = [await wire.chunk() for _ in range(3)]

        assert b": ping\n\n" in chunks[1:]
        wire.close()
        await until(lambda: not len(site.world.gateway.calls))

    run(scenario, engine={"prefill_tokens_per_s": 1.0}, api={"ping_s": 0.5})


def test_the_timeout_header_ends_an_answer():
    async def scenario(site: Site) -> None:
        whole = await site.post(LONG, "X-Request-Timeout: 0.5")
        streamed = await site.post(LONG | {"stream": True}, "X-Request-Timeout: 0.5")

        assert (504, "request_timeout") == (whole.status, json.loads(whole.body)["error"]["code"])
        assert "request_timeout" == events(streamed.body)[-1]["error"]["code"]

    run(scenario, engine=SLOW)


def test_full_queues_are_told_with_a_time_to_come_back():
    async def scenario(site: Site) -> None:
        wires = [await site.begin(LONG) for _ in range(3)]
        await until(lambda: site.world.gateway.gates.waiting == 2)

        refused = await site.post(LONG)

        assert 429 == refused.status
        assert int(refused.headers["retry-after"]) >= 1
        assert "rate_limit_error" == json.loads(refused.body)["error"]["type"]
        for wire in wires:
            wire.close()
        await until(lambda: not len(site.world.gateway.calls))

    run(
        scenario,
        engine=SLOW | {"max_streams": 1},
        admission={"over_commit": 1.0, "queue_per_tenant": 2},
    )


def test_many_clients_at_once_all_get_their_own_answer():
    async def scenario(site: Site) -> None:
        async def one(number: int) -> str:
            asked = CHAT | {"messages": [{"role": "user", "content": f"n{number}"}], "stream": True}
            answer = await site.post(asked)
            *chunks, done = events(answer.body)
            assert "[DONE]" == done
            return "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)

        first = await asyncio.gather(*(one(number) for number in range(60)))
        again = await asyncio.gather(*(one(number) for number in range(60)))

        assert first == again
        assert len(set(first)) > 50

    run(scenario, engine=FAST)


def test_a_stopping_gateway_finishes_streams_and_refuses_what_comes_on_open_connections():
    async def scenario(site: Site) -> None:
        idle = await site.wire()
        idle.get("/health")
        await idle.answer()
        wire = await site.begin(CHAT | {"stream": True, "max_tokens": 60})
        await wire.head()

        site.world.drain_gateway()
        await asyncio.sleep(0.1)
        idle.post("/v1/chat/completions", json.dumps(CHAT).encode())
        refused = await idle.answer()
        body = b""
        while piece := await wire.chunk():
            body += piece

        assert (503, "stopping") == (refused.status, json.loads(refused.body)["error"]["code"])
        assert "[DONE]" == events(body)[-1]

    run(scenario, engine=SLOW, drain_s=5.0)


def test_a_gateway_that_stood_still_does_not_take_its_engines_for_dead():
    async def scenario(site: Site) -> None:
        wire = await site.begin(CHAT | {"stream": True, "max_tokens": 400})
        await wire.head()

        time.sleep(3.0)  # noqa: ASYNC251 - nothing of this loop runs, as when the process is starved
        body = b""
        while piece := await wire.chunk():
            body += piece

        assert "[DONE]" == events(body)[-1]

    run(scenario, engine=SLOW)
