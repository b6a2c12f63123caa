"""The virtual loop: time jumps, order holds, a deadlock is an error."""

from __future__ import annotations

import asyncio
import time

import pytest

from shared.clock import loop_clock, unix_time_s
from shared.vloop import DeadlockError, run_virtual


def test_a_day_passes_at_once():
    async def main() -> float:
        await asyncio.sleep(86_400)
        return loop_clock()()

    start_s = time.monotonic()
    assert 86_400 == run_virtual(main())
    assert time.monotonic() - start_s < 5


def test_timers_fire_in_the_order_of_their_times():
    async def main() -> list[tuple[int, float]]:
        seen: list[tuple[int, float]] = []
        clock = loop_clock()

        async def note(number: int, after_s: float) -> None:
            await asyncio.sleep(after_s)
            seen.append((number, clock()))

        async with asyncio.TaskGroup() as group:
            for number, after_s in enumerate((3.0, 1.0, 2.0)):
                group.create_task(note(number, after_s))
        return seen

    assert [(1, 1.0), (2, 2.0), (0, 3.0)] == run_virtual(main())


def test_a_timeout_fires_in_virtual_time():
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.Event().wait()
        return loop_clock()()

    assert 60 == run_virtual(main())


def test_waiting_for_nothing_is_an_error():
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(wait_for_ever())

    with pytest.raises(DeadlockError, match=r"waiting: .*wait_for_ever"):
        run_virtual(main())


def test_many_small_steps_add_up():
    async def main() -> float:
        for _ in range(10_000):
            await asyncio.sleep(0.1)
        return loop_clock()()

    assert run_virtual(main()) == pytest.approx(1_000)


def test_wall_time_is_whole_seconds_of_now():
    assert unix_time_s() == pytest.approx(time.time(), abs=2)  # noqa: TID251 - what it is compared with
