"""Clients that leave, never read, trickle, lie and ask for the impossible: each is told so in time, and the service lives on as before.

Real gateway and engine processes on a real NATS server; the full sizes are run by `bench/endurance.py`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from shared.nats_config import MAX_PAYLOAD_BYTES
from tests.support.gateway_process import Site
from tests.support.hostile_clients import (
    CHAT_PATH,
    Answered,
    Peak,
    ask,
    at_once,
    chat_body,
    leave_early,
)
from tests.support.http_shell import Wire
from tests.support.nats_server import NatsServer

pytestmark = pytest.mark.timeout(150)
CONTEXT = 900_000
MIB = 1 << 20


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A gateway and an engine as fast as it goes, on a server with our own bound of a message."""
    folder = tmp_path_factory.mktemp("hostile")
    server = NatsServer(folder / "nats", config=f"max_payload: {MAX_PAYLOAD_BYTES}\n")
    server.start()
    try:
        with Site(server, folder) as made:
            made.add_gateway("--http-head-timeout-s", "2", "--http-write-stall-s", "5")
            engine = {
                "max-model-len": CONTEXT,
                "total-blocks": 1_000_000,
                "prefill-tokens-per-s": 1e9,
                "chunk-tokens": 10**9,
                "step-s": 0,
            }
            made.add_engine(*(f"--fake-{name}={value}" for name, value in engine.items()))
            asyncio.run(made.ready())
            yield made
    finally:
        server.kill()


def run(site: Site, scenario: Callable[[], Awaitable[None]]) -> None:
    """Play, and see that nothing is left and that the next client is served."""

    async def whole() -> None:
        async with asyncio.timeout(120):
            await scenario()
            await site.until_figure("open_calls", 0)
            await site.until_figure("in_flight_choices", 0)
            await site.until_figure("open_streams", 0)
            answer = await site.ask({"messages": [{"role": "user", "content": "hi"}]})
            assert "choices" in answer, answer

    asyncio.run(whole())
    assert site.gateways[0].process.poll() is None
    assert site.engines[0].process.poll() is None


def gateway_peak(site: Site) -> Peak:
    return Peak(site.gateways[0].process.pid)


def error_of(answer: Answered) -> dict[str, Any]:
    """Return OpenAI's error object of an answer."""
    error: dict[str, Any] = json.loads(answer.body)["error"]
    return error


# --- clients that leave or do not read


def test_clients_that_leave_leave_nothing(site):
    async def scenario() -> None:
        port = site.ports[0]
        whole, stream = (
            chat_body(site.service, max_tokens=5000, stream=stream) for stream in (False, True)
        )

        def leavers(count: int) -> list[Callable[[], Awaitable[None]]]:
            # Those that wait for a word want a stream.
            bodies = (whole, whole, stream, stream)
            return [partial(leave_early, port, bodies[n % 4], how=n) for n in range(count)]

        await at_once(leavers(200), concurrency=20)
        await site.until_figure("open_calls", 0)
        peak = gateway_peak(site)
        async with peak.watched():
            await at_once(leavers(1000), concurrency=20)
            await site.until_figure("open_calls", 0)
        assert peak.growth_mib < 20, peak.most_mib

    run(site, scenario)


def test_clients_that_never_read_are_cut_at_a_bound(site):
    async def scenario() -> None:
        cut_before = await site.figure("http_slow_clients_total")
        peak = gateway_peak(site)
        wires = [await Wire.open(site.ports[0], receive_bytes=4096) for _ in range(8)]
        async with peak.watched():
            for wire in wires:
                wire.stop_reading()
                wire.post(CHAT_PATH, chat_body(site.service, max_tokens=300_000, stream=True))
            await site.until_figure("http_slow_clients_total", cut_before + 8, timeout_s=60)
        for wire in wires:
            wire.reset()
        # 1 MiB each, what the kernel takes of it beside.
        assert peak.growth_mib < 64, peak.most_mib

    run(site, scenario)


def test_connections_that_never_send_a_request_do_not_keep_others_out(site):
    async def scenario() -> None:
        wires = [await Wire.open(site.ports[0]) for _ in range(300)]
        for number, wire in enumerate(wires):
            wire.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX: "[: 10 + number % 50])
        answers = [await ask(site.ports[0], chat_body(site.service, max_tokens=5)) for _ in "12345"]
        assert {200} == {answer.status for answer in answers}
        for wire in wires:
            assert await wire.is_closed(within_s=10)
            wire.close()

    run(site, scenario)


def test_many_streams_stay_open_together(site):
    async def scenario() -> None:
        # More than the engine runs at a time wait at the gate with their connection open.
        wires = [await Wire.open(site.ports[0]) for _ in range(300)]
        peak = gateway_peak(site)
        async with peak.watched():
            for wire in wires:
                wire.post(CHAT_PATH, chat_body(site.service, max_tokens=50, stream=True))
            for wire in wires:
                answer = await wire.answer()
                assert answer.body.endswith(b"data: [DONE]\n\n"), answer
        for wire in wires:
            wire.close()
        assert peak.growth_mib < 60, peak.most_mib

    run(site, scenario)


# --- large requests


@pytest.mark.parametrize("size", [900_000, 3_000_000])
def test_long_prompts_get_an_answer(site, size):
    async def scenario() -> None:
        text = "tell me about " * (size // 14)
        messages = [{"role": "user", "content": text}]
        body = chat_body(site.service, messages=messages, max_tokens=3)
        for answer in (
            await ask(site.ports[0], body),
            await ask(site.ports[0], body[:-1] + b', "stream": true}'),
        ):
            assert 200 == answer.status, answer.body[:300]

    run(site, scenario)


def test_a_body_of_100_mib_is_refused_at_once_and_not_kept(site):
    async def scenario() -> None:
        peak = gateway_peak(site)
        async with peak.watched():
            wire = await Wire.open(site.ports[0])
            wire.send(b"POST %b HTTP/1.1\r\nHost: a\r\n" % CHAT_PATH.encode())
            wire.send(b"Content-Length: %d\r\n\r\n" % (100 * MIB))
            assert 413 == (await wire.answer()).status
            wire.close()

            wire = await Wire.open(site.ports[0])
            wire.send(b"POST %b HTTP/1.1\r\nHost: a\r\n" % CHAT_PATH.encode())
            wire.send(b"Transfer-Encoding: chunked\r\n\r\n")
            with suppress(ConnectionError):
                for _ in range(100):
                    wire.send(b"100000\r\n" + b" " * MIB + b"\r\n")
                    await asyncio.wait_for(wire.writer.drain(), 5)
            wire.reset()
        assert peak.growth_mib < 48, peak.most_mib

    run(site, scenario)


def test_large_bodies_that_end_at_the_same_moment_disturb_no_stream(site):
    """What holds the loop comes in turns: heartbeats get through, and the engines go on with the work of this gateway."""

    async def scenario() -> None:
        body = b'{"model":"m","prompt":[' + b",".join([b"[0]"] * 1_000_000) + b"]}"
        wires = [await Wire.open(site.ports[0]) for _ in range(8)]
        for wire in wires:
            wire.send(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n")
            wire.send(b"Content-Length: %d\r\n\r\n" % len(body) + body[:-1])
            await wire.writer.drain()
        stream = await Wire.open(site.ports[0])
        stream.post(CHAT_PATH, chat_body(site.service, max_tokens=20_000, stream=True))
        await stream.head()
        for wire in wires:
            wire.send(body[-1:])
        for wire in wires:
            assert 400 == (await wire.answer()).status
            wire.close()
        last = b""
        while piece := await stream.chunk():
            last = piece
        stream.close()
        assert last.endswith(b"data: [DONE]\n\n"), last

    run(site, scenario)


# --- requests that cannot be served

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
JSON_SCHEMA = "response_format.json_schema.schema"


def schema(value: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}


REFUSED: dict[str, tuple[str, str | None]] = {
    "empty messages": ('{"messages":[]}', "messages"),
    "no messages": ("{}", "messages"),
    "n 0": ('{"n":0}', "n"),
    "n negative": ('{"n":-1}', "n"),
    "n huge": ('{"n":99999999999999999999}', "n"),
    "max_tokens 0": ('{"max_tokens":0}', "max_tokens"),
    "max_tokens negative": ('{"max_tokens":-5}', "max_tokens"),
    "temperature NaN": ('{"temperature":NaN}', None),
    "temperature Infinity": ('{"temperature":1e999}', None),
    "temperature negative": ('{"temperature":-0.1}', "temperature"),
    "top_p 0": ('{"top_p":0}', "top_p"),
    "seed too large": ('{"seed":9223372036854775808}', "seed"),
    "seed with a fraction": ('{"seed":1.5}', "seed"),
    "stop token negative": ('{"stop_token_ids":[-1]}', "stop_token_ids[0]"),
    "stop token huge": ('{"stop_token_ids":[4294967296]}', "stop_token_ids[0]"),
    "too many stops": (json.dumps({"stop": ["x"] * 17}), "stop"),
    "a stop without end": (json.dumps({"stop": "x" * 100_000}), "stop"),
    "an empty stop": ('{"stop":[""]}', "stop"),
    "a huge logit_bias": (json.dumps({"logit_bias": dict.fromkeys(map(str, range(9999)), 1)}), "logit_bias"),
    "logit_bias for no token": ('{"logit_bias":{"-1":1}}', None),
    "logit_bias NaN": ('{"logit_bias":{"5":NaN}}', None),
    "logit_bias too strong": ('{"logit_bias":{"5":101}}', None),
    "lone surrogate": ('{"messages":[{"role":"user","content":"\\ud800"}]}', None),
    "NUL in the model": ('{"model":"a\\u0000b"}', "model"),
    "deep JSON": ('{"metadata":' + "[" * 200_000 + "]" * 200_000 + "}", None),
    "a deep schema": (
        '{"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":'
        + '{"a":' * 300 + "1" + "}" * 300 + "}}}",
        JSON_SCHEMA,
    ),
    "a huge schema": (json.dumps({"response_format": schema({"x": [{}] * 1_000_000})}), JSON_SCHEMA),
    "the same key twice": ('{"n":1,"n":1}', None),
    "unknown field": ('{"max_tokenz":1}', "max_tokenz"),
    "too many choices": ('{"n":129}', "n"),
    "not JSON": ("{", None),
    "empty": ("", None),
    "an array": ("[]", None),
}  # fmt: skip


def filled(changes: str, model: str) -> bytes:
    """Return a body with the changes put into a good request, as text: not all of them are JSON."""
    if not changes.startswith("{") or len(changes) < 2:
        return changes.encode()
    good = {"model": model} | CHAT
    kept = {key: value for key, value in good.items() if f'"{key}":' not in changes}
    head = json.dumps(kept)[:-1]
    if changes == "{}":
        return json.dumps({"model": model}).encode()
    comma = ", " if len(head) > 1 else ""
    return (head + comma + changes[1:]).encode()


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_served_is_refused_by_its_name(site, what):
    changes, param = REFUSED[what]

    async def scenario() -> None:
        answer = await ask(site.ports[0], filled(changes, site.service))

        assert 400 == answer.status, answer.body[:300]
        assert answer.took_s < 5
        assert len(answer.body) < 1000
        if param is not None:
            assert param == error_of(answer)["param"], error_of(answer)

    asyncio.run(scenario())


def test_a_prompt_one_token_over_the_limit_is_refused_with_the_numbers(site):
    async def scenario() -> None:
        port = site.ports[0]
        body = {"model": site.service, "prompt": [1] * 10, "max_tokens": CONTEXT - 10}
        over = json.dumps(body | {"max_tokens": CONTEXT - 9}).encode()

        answer = await ask(port, over, path="/v1/completions")

        assert (400, "context_length_exceeded") == (answer.status, error_of(answer)["code"])
        assert str(CONTEXT) in error_of(answer)["message"]
        wire = await Wire.open(port)
        wire.post("/v1/completions", json.dumps(body | {"stream": True}).encode())
        status, _ = await wire.head()
        assert 200 == status
        wire.reset()

    run(site, scenario)


def test_every_character_that_json_can_hold_may_be_in_a_prompt(site):
    async def scenario() -> None:
        text = "\0\x01\x1f\x7f\u2028\ufeff\ufffe\U0010ffff\u202e" + "e\u0301" * 50
        body = chat_body(site.service, messages=[{"role": "user", "content": text}], max_tokens=3)

        assert 200 == (await ask(site.ports[0], body)).status

    run(site, scenario)
