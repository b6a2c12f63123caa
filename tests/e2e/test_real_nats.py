"""The same over NATS: any client, plain or streamed, and the Python client of Headrace."""

from __future__ import annotations

import asyncio
import json

import nats
import pytest

from shared.client import HeadraceClient, RequestFailed

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240)]

MODEL = "smollm2"
CAPITAL = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]


def test_plain_nats_request_and_reply(real_platform):
    async def ask() -> dict:
        connection = await nats.connect(real_platform.nats_url)
        try:
            body = {"messages": CAPITAL, "max_tokens": 12, "temperature": 0}
            reply = await connection.request(
                f"hr.api.{MODEL}.chat", json.dumps(body).encode(), timeout=100
            )
            return json.loads(reply.data)
        finally:
            await connection.close()

    assert "Paris" in asyncio.run(ask())["choices"][0]["message"]["content"]


def test_plain_nats_streaming(real_platform):
    async def ask() -> tuple[str, dict]:
        connection = await nats.connect(real_platform.nats_url)
        try:
            inbox = connection.new_inbox()
            replies = await connection.subscribe(inbox)
            body = {"messages": CAPITAL, "max_tokens": 12, "temperature": 0, "stream": True}
            await connection.publish(f"hr.api.{MODEL}.chat", json.dumps(body).encode(), reply=inbox)
            text = ""
            while True:
                message = await replies.next_msg(timeout=100)
                if "Hr-End" in (message.headers or {}):
                    return text, dict(message.headers or {})
                for choice in json.loads(message.data)["choices"]:
                    text += choice["delta"].get("content") or ""
        finally:
            await connection.close()

    text, end = asyncio.run(ask())

    assert "Paris" in text
    assert "1" == end["Hr-End"]


def test_the_python_client_over_nats(real_platform):
    async def ask() -> tuple[str, str, str]:
        body = {"messages": CAPITAL, "max_tokens": 12, "temperature": 0}
        async with HeadraceClient(real_platform.nats_url) as client:
            whole = await client.chat(MODEL, body, timeout_s=100)
            streamed = ""
            async for chunk in client.stream_chat(MODEL, body, timeout_s=100):
                streamed += "".join(
                    choice["delta"].get("content") or "" for choice in chunk["choices"]
                )
            with pytest.raises(RequestFailed) as caught:
                await client.chat(MODEL, body | {"temperature": 9})
            return whole["choices"][0]["message"]["content"], streamed, caught.value.error["param"]

    whole, streamed, param = asyncio.run(ask())

    assert "Paris" in whole
    assert whole == streamed
    assert "temperature" == param


def test_leaving_a_nats_stream_frees_the_engine(real_platform):
    async def ask() -> None:
        body = {
            "messages": [{"role": "user", "content": "Write a long story."}],
            "max_tokens": 900,
            "ignore_eos": True,
        }
        async with HeadraceClient(real_platform.nats_url) as client:
            stream = client.stream_chat(MODEL, body, timeout_s=100)
            async for _ in stream:
                break
            await stream.aclose()

    asyncio.run(ask())

    real_platform.wait_idle(within_s=20)


def test_gateways_are_found_by_the_services_protocol(real_platform):
    async def ask() -> dict:
        connection = await nats.connect(real_platform.nats_url)
        try:
            return json.loads((await connection.request("$SRV.INFO", b"", timeout=5)).data)
        finally:
            await connection.close()

    info = asyncio.run(ask())

    assert "headrace" == info["name"]
    assert {"chat", "completions", "models"} == {endpoint["name"] for endpoint in info["endpoints"]}
