"""The OpenAI adapter before a server that misbehaves: every fault ends in a refusal or an error piece, and the next job is served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from services.engine.adapters.openai_url import OpenAiEngine
from services.engine.ports import EngineFailedError, RefusedError
from services.engine.settings import OpenAiSettings
from shared.messages import ChatPrompt, Finish, RefuseReason, TextPrompt
from shared.settings import Secret
from tests.support.engine_rig import Pieces, job_of
from tests.support.nats_server import free_port
from tests.support.openai_server import OpenAiServer


class Bench:
    """A server, an engine before it, and what came."""

    def __init__(self) -> None:
        self.server = OpenAiServer()
        self.pieces = Pieces()
        self.engine: OpenAiEngine

    async def answer(self, prompt: str, **sampling):
        """Return all pieces of an answer to a text prompt."""
        job = job_of(TextPrompt(text=prompt), **sampling)
        await self.engine.submit(job)
        return await self.pieces.whole(job.key)


@asynccontextmanager
async def bench(**settings) -> AsyncIterator[Bench]:
    """Start both."""
    made = Bench()
    url = await made.server.start()
    made.engine = OpenAiEngine(OpenAiSettings(**({"url": url} | settings)))
    try:
        await made.engine.start(made.pieces)
        yield made
    finally:
        await made.engine.stop()
        await made.server.stop()


@pytest.mark.parametrize(
    ("fault", "reason", "says"),
    [
        ("html", RefuseReason.NOT_READY, "502"),
        ("busy", RefuseReason.OVERLOADED, "slow down"),
        ("full", RefuseReason.OVERLOADED, "no room"),
        ("bad", RefuseReason.INVALID, "bad top_p"),
        ("detail", RefuseReason.INVALID, "field required"),
        ("key", RefuseReason.NOT_READY, "openai.api_key"),
        ("missing", RefuseReason.UNSUPPORTED, "404"),
        ("string", RefuseReason.TOO_LONG, "too long"),
        ("page", RefuseReason.NOT_READY, "hello"),
        ("moved", RefuseReason.NOT_READY, "302"),
    ],
)
def test_a_refused_request_says_why(fault, reason, says):
    async def scenario():
        async with bench() as on:
            with pytest.raises(RefusedError, match=says) as caught:
                await on.answer(f"!{fault}")

            assert caught.value.reason is reason
            assert caught.value.retry_after_s == (7.0 if fault == "busy" else None)
            assert caught.value.param == ("top_p" if fault == "bad" else None)
            assert on.engine.load().running == 0
            assert await on.answer("fine", max_tokens=2)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("die", ""),
        ("end", "before the answer was complete"),
        ("garbage", "an event that is none"),
        ("binary", "an event that is none"),
        ("huge", "more than"),
        ("choice", "choice 7"),
        ("error", "out of memory"),
        ("strange", "cosmic_ray"),
    ],
)
def test_a_broken_stream_ends_in_a_retryable_error(fault, says):
    async def scenario():
        async with bench() as on:
            pieces = await on.answer(f"!{fault}")

            assert pieces[0].text == "fine "
            assert pieces[-1].finish is Finish.ERROR
            assert pieces[-1].extra.error.retryable
            assert says in pieces[-1].extra.error.message
            assert on.engine.load().running == 0
            assert await on.answer("fine", max_tokens=2)

    asyncio.run(scenario())


def test_every_open_choice_ends_when_the_stream_breaks():
    async def scenario():
        async with bench() as on:
            pieces = await on.answer("!die", n=3)

            assert [0, 1, 2] == [piece.choice for piece in pieces if piece.finish is Finish.ERROR]
            assert [False, False, True] == [piece.extra is not None for piece in pieces[-3:]]

    asyncio.run(scenario())


def test_a_fault_of_the_caller_in_mid_stream_is_not_retried():
    async def scenario():
        async with bench() as on:
            error = (await on.answer("!fault"))[-1].extra.error

            assert (False, "messages") == (error.retryable, error.param)

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", ["no_usage", "no_done"])
def test_a_missing_usage_is_made_up_from_what_came(fault):
    async def scenario():
        async with bench() as on:
            last = (await on.answer(f"!{fault}"))[-1]

            assert (Finish.STOP, "done") == (last.finish, last.text)
            assert last.extra.usage.completion_tokens == 2

    asyncio.run(scenario())


def test_characters_split_over_packets_stay_whole():
    async def scenario():
        async with bench() as on:
            pieces = await on.answer("!split")

            assert ["fine ", "你好", "done"] == [piece.text for piece in pieces]

    asyncio.run(scenario())


def test_a_server_that_never_answers_is_given_up():
    async def scenario():
        async with bench(first_token_timeout_s=0.3) as on:
            with pytest.raises(RefusedError, match="silent") as caught:
                await on.answer("!never")

            assert caught.value.reason is RefuseReason.NOT_READY

    asyncio.run(scenario())


def test_silence_in_mid_stream_is_given_up():
    async def scenario():
        async with bench(idle_timeout_s=0.3) as on:
            error = (await on.answer("!silence"))[-1].extra.error

            assert error.retryable
            assert "silent" in error.message

    asyncio.run(scenario())


def test_a_cancel_closes_the_connection():
    async def scenario():
        async with bench() as on:
            job = job_of("long", max_tokens=2000, ignore_eos=True)
            await on.engine.submit(job)
            await on.pieces.first(job.key)
            assert on.server.running == 1

            on.engine.cancel(job.key)
            for _ in range(100):
                if not on.server.running:
                    break
                await asyncio.sleep(0.02)

            assert on.server.running == 0

    asyncio.run(scenario())


def test_places_are_bounded():
    async def scenario():
        async with bench(max_streams=3) as on:
            await on.engine.submit(job_of("long", n=2, max_tokens=1000, ignore_eos=True))
            with pytest.raises(RefusedError) as overloaded:
                await on.engine.submit(job_of("more", n=2))
            with pytest.raises(RefusedError) as invalid:
                await on.engine.submit(job_of("more", n=4))

            assert overloaded.value.reason is RefuseReason.OVERLOADED
            assert invalid.value.reason is RefuseReason.INVALID

    asyncio.run(scenario())


def test_a_server_that_dies_is_noticed():
    async def scenario():
        async with bench(probe_s=0.05, probes_lost=2) as on:
            on.server.is_ill = True
            async with asyncio.timeout(5):
                reason = await on.engine.failed()

            assert "probes" in reason
            with pytest.raises(EngineFailedError):
                await on.answer("hello")
            assert on.engine.load().running == 0

    asyncio.run(scenario())


def test_extras_are_sent_only_where_they_are_set():
    async def scenario():
        async with bench() as on:
            await on.answer("plain", max_tokens=2)
            await on.answer("rich", max_tokens=2, top_k=5, min_p=0.1, stop_token_ids=(3,))

            plain, rich = on.server.requests
            assert {"model", "stream", "stream_options", "prompt", "max_tokens", "seed"} == set(
                plain
            )
            assert (5, 0.1, [3]) == (rich["top_k"], rich["min_p"], rich["stop_token_ids"])

    asyncio.run(scenario())


def test_the_messages_arrive_as_they_were():
    async def scenario():
        async with bench() as on:
            prompt = ChatPrompt(
                messages_json='[{"role":"user","content":"é  🙂"}]'.encode(),
                tools_json=b'[{"type":"function","function":{"name":"f"}}]',
                tool_choice="function:f",
            )
            job = job_of(prompt, max_tokens=2)
            await on.engine.submit(job)
            await on.pieces.whole(job.key)

            (body,) = on.server.requests
            assert body["messages"] == [{"role": "user", "content": "é  🙂"}]
            assert body["tool_choice"] == {"type": "function", "function": {"name": "f"}}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"url": ""}, "openai.url"),
        ({"url": "localhost:8000/v1"}, "openai.url"),
        ({"model": "other"}, "openai.model"),
    ],
)
def test_a_start_that_cannot_be_says_what_to_change(settings, says):
    async def scenario():
        with pytest.raises(EngineFailedError, match=says):
            async with bench(**settings):
                pass

    asyncio.run(scenario())


def test_no_server_at_all_stops_the_start():
    async def scenario():
        engine = OpenAiEngine(
            OpenAiSettings(url=f"http://127.0.0.1:{free_port()}/v1", start_timeout_s=0.3)
        )
        with pytest.raises(EngineFailedError, match=r"within 0\.3 s"):
            await engine.start(Pieces())
        await engine.stop()

    asyncio.run(scenario())


def test_the_key_is_sent_and_never_shown():
    settings = OpenAiSettings(url="http://127.0.0.1:1/v1", api_key=Secret("sk-very-secret"))

    assert "sk-very-secret" not in repr(settings)
