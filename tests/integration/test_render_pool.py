"""Real render processes: a template that hangs, a process that dies or stands still, and the jobs around them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from services.engine.adapters import render_pool
from services.engine.adapters.render_frames import Setup, TemplateSetup
from services.engine.adapters.render_pool import RenderPool
from services.engine.ports import EngineFailedError, RefusedError
from shared.messages import RefuseReason
from tests.support.tiny_tokenizers import byte_level

TEMPLATE = (
    "{% if 'loop' in messages[0].content %}"
    "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}"
    "{% elif 'refuse' in messages[0].content %}{{ raise_exception('only one message please') }}"
    "{% elif 'break' in messages[0].content %}{{ messages[0].content + 1 }}"
    "{% endif %}<|im_start|>{{ messages[0].content }}"
)
TIMEOUT_S = 0.5


def setup_of(**changes) -> Setup:
    template = TemplateSetup(TEMPLATE, "string")
    made = {
        "tokenizer_json": byte_level().to_str(),
        "chat": template,
        "tools": template,
        "variables": {},
        "timeout_s": TIMEOUT_S,
    }
    return Setup(**(made | changes))


@asynccontextmanager
async def pool_of(**changes) -> AsyncIterator[RenderPool]:
    """Start a pool, stop it at the end."""
    pool = RenderPool()
    try:
        await pool.spawn()
        await pool.load(setup_of(**changes))
        yield pool
    finally:
        await pool.stop()


def messages(content: str) -> bytes:
    return json.dumps([{"role": "user", "content": content}]).encode()


def expected(content: str) -> list[int]:
    return byte_level().encode(f"<|im_start|>{content}", add_special_tokens=False).ids


async def is_served(pool: RenderPool, content: str = "hello") -> bool:
    return await pool.chat(messages(content), None) == expected(content)


def pid_of(pool: RenderPool) -> int:
    """Return the process of short prompts."""
    popen = pool._short._popen
    assert popen is not None
    return popen.pid


def test_conversations_and_texts_become_tokens():
    async def scenario():
        async with pool_of() as pool:
            assert await is_served(pool)
            assert await pool.chat(messages("hi"), b"[]") == expected("hi")
            assert await pool.text("a<|im_end|>b") == byte_level().encode("a<|im_end|>b").ids

    asyncio.run(scenario())


def test_many_at_once_all_come_in_their_places():
    async def scenario():
        async with pool_of() as pool:
            contents = [f"number {number}" for number in range(200)]
            answers = await asyncio.gather(*(pool.chat(messages(each), None) for each in contents))

            assert [expected(each) for each in contents] == answers

    asyncio.run(scenario())


def test_a_template_that_loops_is_interrupted_and_its_process_serves_on():
    async def scenario():
        async with pool_of() as pool:
            pid = pid_of(pool)
            with pytest.raises(RefusedError, match=r"more than 0\.5 s") as caught:
                await pool.chat(messages("loop"), None)

            assert (RefuseReason.INVALID, "messages") == (caught.value.reason, caught.value.param)
            assert await is_served(pool)
            assert pid == pid_of(pool)

    asyncio.run(scenario())


def test_the_loop_goes_on_while_a_template_hangs():
    async def scenario():
        async with pool_of() as pool:
            async with asyncio.TaskGroup() as group:
                hung = group.create_task(swallowed(pool.chat(messages("loop"), None)))
                ticks = 0
                while not hung.done():
                    await asyncio.sleep(0.01)
                    ticks += 1

            assert ticks > 10

    asyncio.run(scenario())


async def swallowed(job) -> RefusedError | None:
    try:
        await job
    except RefusedError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("content", "says"),
    [("refuse", "only one message please"), ("break", "can't render these messages: TypeError")],
)
def test_what_a_template_says_reaches_the_client(content, says):
    async def scenario():
        async with pool_of() as pool:
            with pytest.raises(RefusedError, match=says) as caught:
                await pool.chat(messages(content), None)

            assert caught.value.reason is RefuseReason.INVALID
            assert await is_served(pool)

    asyncio.run(scenario())


def test_a_process_that_stands_still_is_killed_and_replaced():
    async def scenario():
        async with pool_of() as pool:
            pid = pid_of(pool)
            os.kill(pid, signal.SIGSTOP)
            began = time.monotonic()
            refusals = await asyncio.gather(
                *(swallowed(pool.chat(messages("x"), None)) for _ in range(3))
            )

            assert [RefuseReason.OVERLOADED] * 3 == [each.reason for each in refusals if each]
            assert time.monotonic() - began < TIMEOUT_S + render_pool.GRACE_S + 5
            assert await is_served(pool)
            assert pid != pid_of(pool)

    asyncio.run(scenario())


def test_a_killed_process_is_replaced_by_the_next_job():
    async def scenario():
        async with pool_of() as pool:
            os.kill(pid_of(pool), signal.SIGKILL)
            answers = [await swallowed(pool.chat(messages("x"), None)) for _ in range(2)]

            assert answers[1] is None
            assert await is_served(pool)

    asyncio.run(scenario())


def test_a_caller_that_gives_up_harms_nobody():
    async def scenario():
        async with pool_of() as pool:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await pool.chat(messages("loop"), None)

            assert await is_served(pool)

    asyncio.run(scenario())


def test_long_prompts_do_not_delay_short_ones():
    async def scenario():
        async with pool_of(timeout_s=30.0) as pool, asyncio.TaskGroup() as group:
            long = "x" * render_pool.LONG_BYTES
            hung = group.create_task(swallowed(pool.chat(messages("loop" + long), None)))
            await asyncio.sleep(0.05)

            assert await is_served(pool)
            assert not hung.done()
            hung.cancel()

    asyncio.run(scenario())


def test_more_jobs_than_the_bound_are_refused_as_overload():
    async def scenario():
        async with pool_of(timeout_s=0.1) as pool:
            os.kill(pid_of(pool), signal.SIGSTOP)
            jobs = [pool.chat(messages("x"), None) for _ in range(render_pool.MAX_JOBS + 1)]
            refusals = await asyncio.gather(*map(swallowed, jobs))

            assert [RefuseReason.OVERLOADED] == list({each.reason for each in refusals if each})
            assert "wait to be tokenized" in str(refusals[-1])

    asyncio.run(scenario())


def test_a_stopped_pool_takes_no_job():
    async def scenario():
        async with pool_of() as pool:
            await pool.stop()
            with pytest.raises(RefusedError) as caught:
                await pool.text("x")

            assert caught.value.reason is RefuseReason.NOT_READY

    asyncio.run(scenario())


def test_a_process_that_can_not_start_fails_the_engine():
    async def scenario():
        pool = RenderPool()
        await pool.spawn()
        with pytest.raises(EngineFailedError, match="did not start"):
            await pool.load(setup_of(tokenizer_json="nonsense"))
        await pool.stop()

    asyncio.run(scenario())
