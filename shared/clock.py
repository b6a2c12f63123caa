"""Where time comes from: the loop's monotonic clock inside, wall time at the edge only (what people and other programs read)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Monotonic seconds; only differences mean anything."""


def loop_clock() -> Clock:
    """Return the running loop's clock; in tests it is the virtual one."""
    return asyncio.get_running_loop().time


def stamp_clock() -> Clock:
    """Return the clock for stamps that other processes compare with theirs: microseconds, also within one tick of the loop."""
    loop = asyncio.get_running_loop()
    return time.monotonic if type(loop).__module__.startswith("uvloop") else loop.time


def unix_time_s() -> int:
    """Return the wall time in whole seconds, for `created` fields and the like; never for durations."""
    return int(time.time())  # noqa: TID251 - the one reader of wall time


def wall_time_s() -> float:
    """Return the wall time in seconds with its fractions, for what is shown to people beside a monotonic stamp."""
    return time.time()  # noqa: TID251 - as above
