"""Grammars are tried out in a real builder process: ones that take too long, too much, or the process along, and the others meanwhile."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.engine.adapters.grammar_builder import Compile
from services.engine.adapters.grammar_check import MAX_WAITING, GrammarCheck
from services.engine.adapters.grammar_frames import Bounds
from services.engine.ports import RefusedError
from shared.messages import RefuseReason
from tests.support.nursery import is_running

BOUNDS = Bounds(cpu_s=0.3)


def load(setup: bytes) -> Compile:
    """Return a compiler whose grammars say what is to happen."""

    def compile_(kind: str, spec: str) -> None:
        match spec.split(maxsplit=1)[0]:
            case "spin":
                while True:
                    pass
            case "sleep":
                time.sleep(60)
            case "hog":
                bytearray(BOUNDS.memory_bytes)
            case "crash":
                ctypes.string_at(0)
            case "no":
                raise ValueError(f"{setup.decode()} has no {kind} {spec}")

    return compile_


def played(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """Run a test in a loop."""

    @functools.wraps(test)
    def run(*args, **kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@asynccontextmanager
async def check_of(bounds: Bounds = BOUNDS, **settings) -> AsyncIterator[GrammarCheck]:
    """Start a check, stop it at the end."""
    made = GrammarCheck(load, bounds, **settings)
    made.fork()
    try:
        await made.connect(b"tiny")
        yield made
    finally:
        await made.stop()


async def told(check: GrammarCheck, spec: str) -> RefusedError | None:
    try:
        async with asyncio.timeout(20):
            check.judge(await asyncio.shield(check.begin("JSON", spec)), param="tools")
    except RefusedError as error:
        return error
    return None


@played
async def test_what_can_be_built_is_taken():
    async with check_of() as check:
        assert await told(check, "fine") is None


@played
async def test_what_has_no_grammar_is_refused_with_the_reason():
    async with check_of() as check:
        refusal = await told(check, "no way")

    assert (RefuseReason.INVALID, "tools") == (refusal.reason, refusal.param)
    assert "tiny has no JSON no way" in str(refusal)


@pytest.mark.parametrize("spec", ["spin", "hog", "crash"])
@played
async def test_what_takes_too_much_is_refused_by_the_fields_name_and_others_are_served(spec):
    async with check_of() as check:
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            bomb = group.create_task(told(check, spec))
            assert await told(check, "fine") is None
        refusal = bomb.result()
        assert time.monotonic() - began < 3
        assert await told(check, "fine too") is None

    assert (RefuseReason.INVALID, "tools") == (refusal.reason, refusal.param)
    assert "more than 0.3 s or 512 MiB" in str(refusal)


@played
async def test_a_verdict_is_remembered_and_shared():
    async with check_of() as check:
        began = time.monotonic()
        both = await asyncio.gather(told(check, "spin"), told(check, "spin"))
        once_s = time.monotonic() - began
        again = await told(check, "spin")

        assert 1 == check._last_number
    assert [RefuseReason.INVALID] * 3 == [each.reason for each in (*both, again)]
    assert time.monotonic() - began - once_s < 0.5


@played
async def test_a_busy_machine_is_not_the_schemas_fault_and_a_second_try_is_one():
    async with check_of(Bounds(cpu_s=9.0, wall_s=0.2)) as check:
        refusals = [await told(check, "sleep"), await told(check, "sleep")]

        assert 2 == check._last_number
    assert [RefuseReason.OVERLOADED] * 2 == [each.reason for each in refusals]


@played
async def test_no_more_wait_than_may():
    async with check_of() as check, asyncio.TaskGroup() as group:
        for number in range(MAX_WAITING):
            group.create_task(told(check, f"sleep {number}"))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        refusal = await told(check, "fine")
        took_s = time.monotonic() - began
        await check.stop()

    assert RefuseReason.OVERLOADED is refusal.reason
    assert took_s < 0.5


@played
async def test_verdicts_are_forgotten_in_time():
    async with check_of(kept=2) as check:
        for spec in ("one", "two", "one", "three", "one", "two"):
            assert await told(check, spec) is None

        assert 4 == check._last_number, "the second is forgotten, the first was asked for since"
        assert 2 == len(check._verdicts)


@played
async def test_where_the_builder_is_lost_nothing_is_taken_any_more():
    async with check_of() as check, asyncio.TaskGroup() as group:
        waiting = group.create_task(told(check, "sleep"))
        await asyncio.sleep(0.1)
        os.kill(check._pid, signal.SIGKILL)

        assert RefuseReason.NOT_READY is (await waiting).reason
        assert RefuseReason.NOT_READY is (await told(check, "fine")).reason


def test_nothing_is_left_of_a_check_that_was_stopped():
    pids: list[int] = []

    async def scenario() -> None:
        async with check_of() as check, asyncio.TaskGroup() as group:
            waiting = group.create_task(told(check, "sleep"))
            await asyncio.sleep(0.2)
            pids.extend((check._pid, *children(check._pid)))
            await check.stop()
            assert RefuseReason.NOT_READY is (await waiting).reason

    asyncio.run(scenario())

    assert 2 == len(pids)
    until = time.monotonic() + 5
    while any(map(is_running, pids)):
        assert time.monotonic() < until
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
