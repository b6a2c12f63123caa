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


def unix_time_s() -> int:
    """Return the wall time in whole seconds, for `created` fields and the like; never for durations."""
    return int(time.time())  # noqa: TID251 - the one reader of wall time
