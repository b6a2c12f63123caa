"""What HTTP clients are told of their request's span and time, and what the ledger knows of requests that the server cuts short."""

from __future__ import annotations

import asyncio
import json
import re

import openai
import pytest

from shared.messages import STAGES, UNKNOWN_SERVICE, Ledger, Outcome
from tests.support.gateway_site import CHAT, FAST, SLOW, Site, events, run
from tests.support.http_shell import until

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
PATH = "/v1/chat/completions"


async def entries(site: Site, number: int = 1) -> list[Ledger]:
    """Return the entries of all services when so many have come."""
    ledgers = site.world.ledgers
    await until(lambda: sum(map(len, ledgers.values())) >= number)
    return [entry for told in ledgers.values() for entry in told]


def test_the_official_client_reads_answers_with_timing_and_gets_the_figures():
    async def scenario(site: Site) -> None:
        client = openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{site.port}/v1", api_key="none", max_retries=0
        )
        asked = {key: CHAT[key] for key in ("model", "messages", "max_tokens", "seed")}
        headers = {"X-Headrace-Timing": "1", "traceparent": PARENT}
        async with client:
            whole = await client.chat.completions.with_raw_response.create(
                **asked, extra_headers=headers
            )
            stream = await client.chat.completions.create(
                **asked, stream=True, extra_headers=headers
            )
            finishes = [chunk.choices[0].finish_reason async for chunk in stream]
        site.world.asked += 2

        (first, second) = await entries(site, 2)
        named = re.findall(r"(\w+);dur=([0-9.]+)", whole.headers["server-timing"])
        assert [*STAGES, "ttft", "total"] == [name for name, _ in named]
        by_name = {name: float(ms) for name, ms in named}
        assert by_name["total"] == pytest.approx(sum(by_name[stage] for stage in STAGES), abs=0.01)
        assert by_name["total"] <= first.wall_us / 1000 + 0.01
        assert f"00-{PARENT[3:35]}-{first.span_id.hex()}-01" == whole.headers["traceparent"]
        assert "length" == finishes[-1]
        assert [Outcome.FINISHED] * 2 == [first.outcome, second.outcome]
        assert second.is_streamed

    run(scenario, engine=FAST)


def test_a_stream_ends_with_a_comment_that_says_where_the_time_went():
    async def scenario(site: Site) -> None:
        answer = await site.post(CHAT | {"stream": True}, "X-Headrace-Timing: 1")
        plain = await site.post(CHAT | {"stream": True})

        *_, comment, done = [line for line in answer.body.decode().split("\n\n") if line]
        assert "data: [DONE]" == done == f"data: {events(answer.body)[-1]}"
        timing = json.loads(comment.removeprefix(": headrace-timing "))
        assert list(STAGES) == list(timing["stages_ms"])
        assert timing["request"] == answer.headers["hr-request-id"]
        assert timing["wall_ms"] == pytest.approx(sum(timing["stages_ms"].values()), abs=0.01)
        assert 0 < timing["ttft_ms"] < timing["wall_ms"]
        (engine,) = site.world.engines
        assert engine.service._engine == timing["engine"]
        assert b"headrace-timing" not in plain.body
        assert "server-timing" not in answer.headers

    run(scenario, engine=FAST)


@pytest.mark.parametrize(
    ("body", "fields", "status", "code"),
    [
        (b"{", (), 400, "invalid_json"),
        (CHAT | {"model": "x"}, (), 404, "model_not_found"),
        (CHAT, ("X-Priority: now",), 400, "invalid_request_error"),
        (CHAT, ("Content-Type: multipart/form-data",), 415, "not_json"),
    ],
)
def test_errors_carry_the_span_and_have_an_entry(body, fields, status, code):
    async def scenario(site: Site) -> None:
        answer = await site.post(body, *fields, f"traceparent: {PARENT}", "X-Headrace-Timing: 1")

        (entry,) = await entries(site)
        assert status == answer.status == entry.status
        assert (Outcome.INVALID, code, "http") == (entry.outcome, entry.code, entry.door)
        assert f"00-{PARENT[3:35]}-{entry.span_id.hex()}-01" == answer.headers["traceparent"]
        assert entry.request == answer.headers["hr-request-id"]
        assert [UNKNOWN_SERVICE] == list(site.world.ledgers)
        named = dict(re.findall(r"(\w+);dur=([0-9.]+)", answer.headers["server-timing"]))
        spent_ms = sum(float(named[stage]) for stage in STAGES)
        assert float(named["total"]) == pytest.approx(spent_ms, abs=0.01)

    run(scenario, engine=FAST)


def test_a_body_that_the_server_refuses_unread_has_an_entry():
    async def scenario(site: Site) -> None:
        wire = await site.wire()
        wire.send(f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n".encode())

        status, headers = await wire.head()

        (entry,) = await entries(site)
        site.world.asked += 1
        assert (413, 413, "request_too_large") == (status, entry.status, entry.code)
        assert (Outcome.INVALID, "chat") == (entry.outcome, entry.kind)
        assert entry.span_id.hex() in headers["traceparent"]

    run(scenario, engine=FAST)


@pytest.mark.parametrize("body_timeout_s", [0.2, 30.0])
def test_a_body_that_never_comes_whole_has_an_entry(body_timeout_s):
    """The server gives it up, or the client does."""

    async def scenario(site: Site) -> None:
        wire = await site.wire()
        wire.send(f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nxy".encode())
        await asyncio.sleep(0.1)
        if body_timeout_s > 1:
            wire.close()

        (entry,) = await entries(site)
        site.world.asked += 1
        is_left = body_timeout_s > 1
        assert (Outcome.LEFT if is_left else Outcome.INVALID) is entry.outcome
        assert (499 if is_left else 408) == entry.status
        assert entry.wall_us == sum(entry.us)
        assert 90_000 < entry.us[0]

    run(scenario, engine=FAST, http={"body_idle_s": body_timeout_s})


def test_other_paths_and_a_request_that_is_none_have_no_entry():
    async def scenario(site: Site) -> None:
        await site.get("/v1/models")
        await site.get(PATH)
        wire = await site.wire()
        wire.send(b"POST /v1/nothing HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n")
        await wire.head()

        assert 0 == site.world.gateway.ledgers.opened

    run(scenario, engine=FAST)


def test_answers_on_one_connection_have_their_own_entries():
    async def scenario(site: Site) -> None:
        wire = await site.wire()
        body = json.dumps(CHAT).encode()
        for _ in range(5):
            wire.post(PATH, body)
        answers = [await wire.answer() for _ in range(5)]

        told = await entries(site, 5)
        assert {answer.headers["hr-request-id"] for answer in answers} == {e.request for e in told}
        assert all(entry.us[-1] < 100_000 for entry in told)

    run(scenario, engine=SLOW)
