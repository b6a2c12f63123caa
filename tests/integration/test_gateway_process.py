"""Gateway and engine processes on a real NATS server: both doors, losses, restarts, stopping, exposure."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import nats
import openai
import pytest
from nats.errors import NoRespondersError

from shared.client import HeadraceClient
from shared.keys import key_line
from tests.support.buses import until
from tests.support.gateway_process import Child, Site
from tests.support.nats_server import NatsServer

pytestmark = pytest.mark.timeout(120)

CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 20,
    "ignore_eos": True,
    "seed": 5,
}
LONG = CHAT | {"max_tokens": 6000}


@pytest.fixture(scope="module")
def calm(nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One gateway and one engine for the tests that end nothing."""
    with Site(nats_server, tmp_path_factory.mktemp("calm")) as made:
        made.add_gateway()
        made.add_engine()
        asyncio.run(made.ready())
        yield made


@pytest.fixture
def site(nats_server: NatsServer, tmp_path: Path) -> Iterator[Site]:
    with Site(nats_server, tmp_path) as made:
        yield made


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(100):
            await scenario()

    asyncio.run(bounded())


def test_both_doors_give_the_same_answer(calm):
    async def scenario() -> None:
        async with HeadraceClient(calm.server.url) as client:
            http = await calm.ask(CHAT)
            whole = await client.chat(calm.service, CHAT)
            chunks = [chunk async for chunk in client.stream_chat(calm.service, CHAT)]
            models = await client.models(calm.service)

        text = http["choices"][0]["message"]["content"]
        assert text == whole["choices"][0]["message"]["content"]
        assert text == "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
        assert calm.service in [entry["id"] for entry in models["data"]]
        assert 0 == await calm.figure("open_calls")

    run(scenario)


def test_the_openai_client_gets_answers_streams_and_errors(calm):
    client = openai.OpenAI(base_url=f"{calm.url()}/v1", api_key="none", max_retries=0)
    messages: list[Any] = CHAT["messages"]
    with client:
        whole = client.chat.completions.create(
            model=calm.service, messages=messages, max_tokens=9, n=2, seed=1
        )
        stream = client.chat.completions.create(
            model=calm.service,
            messages=messages,
            max_tokens=9,
            seed=1,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        text = client.completions.create(model=calm.service, prompt="once", max_tokens=4)
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="other", messages=messages)
        with pytest.raises(openai.BadRequestError) as bad:
            client.chat.completions.create(model=calm.service, messages=messages, top_p=2)
        late = client.with_options(default_headers={"X-Request-Timeout": "0.5"})
        with pytest.raises(openai.APIError, match="timeout"):
            list(
                late.chat.completions.create(
                    model=calm.service,
                    messages=messages,
                    max_tokens=6000,
                    stream=True,
                    extra_body={"ignore_eos": True},
                )
            )

    assert [0, 1] == [choice.index for choice in whole.choices]
    assert whole._request_id == whole.id
    said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert said == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert text.choices[0].text
    assert "top_p" == bad.value.param


def test_a_plain_nats_client_gets_answers_streams_and_errors(calm):
    async def scenario() -> None:
        client = await nats.connect(calm.server.url)
        subject = f"hr.api.{calm.service}.chat"

        whole = await client.request(subject, msgspec.json.encode(CHAT), timeout=10)
        bad = await client.request(subject, b"{}", timeout=10)
        inbox = client.new_inbox()
        replies = await client.subscribe(inbox)
        await client.publish(subject, msgspec.json.encode(CHAT | {"stream": True}), reply=inbox)
        messages = [await replies.next_msg(timeout=10)]
        while "Hr-End" not in (messages[-1].headers or {}):
            messages.append(await replies.next_msg(timeout=10))
        info = await client.request("$SRV.INFO.headrace", b"", timeout=5)
        await client.close()

        assert "chat.completion" == msgspec.json.decode(whole.data)["object"]
        assert "400" == (bad.headers or {})["Nats-Service-Error-Code"]
        assert "chat.completion.chunk" == msgspec.json.decode(messages[0].data)["object"]
        assert b"" == messages[-1].data
        assert 3 == len(msgspec.json.decode(info.data)["endpoints"])

    run(scenario)


def test_without_a_gateway_a_nats_caller_knows_at_once(nats_server):
    async def scenario() -> None:
        client = await nats.connect(nats_server.url)
        with pytest.raises(NoRespondersError):
            await client.request("hr.api.nobody.nothing", b"", timeout=5)
        await client.close()

    run(scenario)


def test_a_nats_caller_that_is_gone_stops_the_engine(calm):
    async def scenario() -> None:
        client = await nats.connect(calm.server.url)
        inbox = client.new_inbox()
        replies = await client.subscribe(inbox)
        body = msgspec.json.encode(LONG | {"stream": True})
        await client.publish(f"hr.api.{calm.service}.chat", body, reply=inbox)
        await replies.next_msg(timeout=10)
        assert 1 == await calm.figure("open_streams")

        await client.close()
        await calm.until_figure("open_streams", 0, timeout_s=5)

    run(scenario)


def test_leaving_a_stream_early_cancels_it(calm):
    async def scenario() -> None:
        async with HeadraceClient(calm.server.url) as client:
            async for _ in client.stream_chat(calm.service, LONG):
                break
            await calm.until_figure("open_streams", 0, timeout_s=3)

    run(scenario)


def test_a_killed_engine_is_replaced_and_each_word_comes_once(site):
    async def scenario() -> None:
        site.add_gateway()
        victim = site.add_engine()
        await site.ready()
        asked = LONG | {"max_tokens": 1200, "temperature": 0.0}
        async with HeadraceClient(site.server.url) as client:
            wanted = await site.ask(asked)
            whole = asyncio.ensure_future(site.ask(asked))  # noqa: TID251
            stream = client.stream_chat(site.service, asked)
            chunks = [await anext(stream)]
            await asyncio.sleep(0.5)
            site.add_engine()
            await site.ready()

            victim.kill()
            chunks += [chunk async for chunk in stream]
            answer = await whole

        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        assert wanted["choices"][0]["message"]["content"] == text
        assert wanted["choices"] == answer["choices"]
        assert wanted["usage"] == answer["usage"]
        assert {"continued": "exact"} == answer["headrace"]
        assert [{"continued": "exact"}] == [c["headrace"] for c in chunks if "headrace" in c]
        assert 0 == await site.figure("open_streams")
        assert 0 == await site.figure("in_flight_choices")

    run(scenario)


def test_openais_client_raises_where_nobody_can_go_on(site):
    async def scenario() -> None:
        site.add_gateway("--call-replacement-s", "0.5")
        victim = site.add_engine()
        await site.ready()
        client = openai.AsyncOpenAI(base_url=f"{site.url()}/v1", api_key="none", max_retries=0)
        async with client:
            stream = await client.chat.completions.create(
                model=site.service,
                messages=[{"role": "user", "content": "hi"}],
                max_tokens=4000,
                stream=True,
            )
            for _ in range(5):
                await anext(stream)
            victim.kill()
            with pytest.raises(openai.APIError) as failure:
                async for _ in stream:
                    pass

        assert "gone" in failure.value.message
        assert 0 == await site.figure("open_streams")

    run(scenario)


def test_two_gateways_serve_one_fleet(site):
    async def scenario() -> None:
        site.add_gateway()
        site.add_gateway()
        site.add_engine()
        site.add_engine()
        await site.ready()

        answers = await asyncio.gather(*(site.ask(CHAT, gateway=no % 2) for no in range(40)))

        assert {20} == {answer["usage"]["completion_tokens"] for answer in answers}
        assert all([await site.figure("gateways", gateway=no) >= 2 for no in (0, 1)])

    run(scenario)


def test_a_gateway_outlives_a_restart_of_the_server(own_nats_server, tmp_path):
    async def scenario() -> None:
        with Site(own_nats_server, tmp_path) as site:
            site.add_gateway()
            site.add_engine()
            await site.ready()

            await asyncio.to_thread(own_nats_server.kill)
            away = await site.ask(CHAT)
            await asyncio.to_thread(own_nats_server.start)
            async with asyncio.timeout(20):
                while "choices" not in (answer := await site.ask(CHAT)):  # noqa: ASYNC110 - asked over HTTP
                    await asyncio.sleep(0.2)

            assert away["error"]["type"] == "server_error"
            assert 20 == answer["usage"]["completion_tokens"]

    run(scenario)


def test_sigterm_lets_answers_finish_and_ends_cleanly(site):
    async def scenario() -> None:
        gateway = site.add_gateway("--drain-s", "10")
        site.add_engine()
        await site.ready()
        asked = asyncio.ensure_future(site.ask(CHAT | {"max_tokens": 100}))  # noqa: TID251
        await site.until_figure("open_streams", 1)

        gateway.signal(signal.SIGTERM)
        answer = await asked

        assert 100 == answer["usage"]["completion_tokens"]
        assert 0 == await gateway.exit_code()
        assert "Traceback" not in gateway.log

    run(scenario)


def test_a_network_address_without_keys_stops_the_start(nats_server, tmp_path):
    async def scenario() -> None:
        options = ("--nats-url", nats_server.url, "--http-host", "0.0.0.0", "--http-port", "0")  # noqa: S104
        child = Child("services.gateway", tmp_path / "log", *options)

        assert 2 == await child.exit_code()
        assert "refusing to listen on '0.0.0.0' without API keys" in child.log
        assert "Traceback" not in child.log

    run(scenario)


def test_a_taken_port_stops_the_start_with_its_name(site, nats_server, tmp_path):
    async def scenario() -> None:
        site.add_gateway()
        await site.gateways[0].says("gateway_ready")
        options = ("--nats-url", nats_server.url, "--http-port", str(site.ports[0]))
        child = Child("services.gateway", tmp_path / "log", *options)

        assert 2 == await child.exit_code()
        assert str(site.ports[0]) in child.log
        assert "Traceback" not in child.log

    run(scenario)


def test_keys_are_read_again_on_change_and_on_sighup(site, tmp_path):
    async def scenario() -> None:
        keys = tmp_path / "keys"
        keys.write_text(key_line("alice", "ka"))
        site.key = "ka"
        gateway = site.add_gateway("--keys-file", str(keys))
        site.add_engine()
        await site.ready()
        first = await site.ask(CHAT, Authorization="Bearer ka")

        keys.write_text(key_line("bob", "kb"))
        gateway.signal(signal.SIGHUP)
        await until(lambda: "keys_reloaded" in gateway.log)
        old = await site.ask(CHAT, Authorization="Bearer ka")
        new = await site.ask(CHAT, Authorization="Bearer kb")

        assert "choices" in first
        assert "invalid_api_key" == old["error"]["code"]
        assert "choices" in new
        assert "kb" not in gateway.log

    run(scenario)
