"""An event loop for tests whose clock jumps to the next timer instead of waiting: a simulated day takes less than a second.

Not for real sockets, subprocesses or threads: what they bring takes real time, which this clock does not see.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from typing_extensions import override

T = TypeVar("T")


class DeadlockError(RuntimeError):
    """Everybody waits and no timer is set: the test would hang."""


class _JumpingSelector(selectors.DefaultSelector):
    """Never sleeps: hands the time it was to sleep to the loop."""

    def __init__(self, jump: Callable[[float], None]) -> None:
        super().__init__()
        self._jump = jump

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise DeadlockError("nothing is ready and no timer is set")
        self._jump(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Starts at 0 s; `time()` moves only when everybody waits."""

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__(_JumpingSelector(self._jump))

    @override
    def time(self) -> float:
        return self._now_s

    def _jump(self, by_s: float) -> None:
        self._now_s += by_s


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time. Raises `DeadlockError`, with the waiting tasks, where it would wait for ever."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        try:
            return runner.run(main)
        except DeadlockError as error:
            loop = runner.get_loop()
            waiting = asyncio.all_tasks(loop)
            told = DeadlockError(f"{error}; waiting: {sorted(map(repr, waiting))}")
            for task in waiting:
                task.cancel()
            loop.run_until_complete(asyncio.wait(waiting))
            raise told from None
