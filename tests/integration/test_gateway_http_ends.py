"""The HTTP door when things end early or take long: clients that leave, engines that die, deadlines, full queues, stopping."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from tests.support.gateway_site import CHAT, FAST, LONG, SLOW, Site, events, run
from tests.support.http_shell import until


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
        # OpenAI's clients repeat a 504 by themselves unless told not to.
        assert whole.headers["x-should-retry"] == "false"
        assert "request_timeout" == events(streamed.body)[-1]["error"]["code"]

    run(scenario, engine=SLOW)


def test_an_answer_too_large_for_one_piece_is_not_generated_to_its_end():
    async def scenario(site: Site) -> None:
        answer = await site.post(LONG)

        error = json.loads(answer.body)["error"]
        assert (500, "answer_too_large") == (answer.status, error["code"])
        await until(lambda: not site.world.engines[0].live)
        produced = site.world.engines[0].service._streams.completed_tokens
        assert produced < LONG["max_tokens"] / 2

    run(scenario, engine=FAST, limits={"max_answer_chars": 200})


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
