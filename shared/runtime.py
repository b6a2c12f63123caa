"""Runs one service process: uvloop, one task group, signals, drain deadline, exit code. The broad catch at the top of a service is here.

Knows no service and no bus. Logging is configured by `__main__` before.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import NoReturn

import uvloop

from shared import logs
from shared.errors import UserError
from shared.health import Health, HealthState
from shared.parentage import SIGNAL_EXIT_BASE, die_with_parent

__all__ = [
    "EXIT_FAILED",
    "EXIT_UNDRAINED",
    "EXIT_USER_ERROR",
    "SIGNAL_EXIT_BASE",
    "Runtime",
    "ServiceMain",
    "complain",
    "die_with_parent",
    "run",
]

EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_UNDRAINED = 3


class Runtime:
    """What a service's main gets: the group that owns its tasks, the stop event, its health."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self.group = group
        self.stop = asyncio.Event()
        """Set by the first SIGTERM or SIGINT: take nothing new, finish what runs, return."""
        self.health = Health()


ServiceMain = Callable[[Runtime], Awaitable[None]]
"""Starts the service, waits for `stop`, drains, cleans up, returns. Its other tasks in the group are then cancelled."""


def run(main: ServiceMain, *, drain_s: float) -> int:
    """Run a service to its end and return the exit code.

    The first signal starts the drain, which is cut off after `drain_s`; a second one ends the process at once.
    A `UserError` ends it with one line and no traceback, anything else with a logged traceback.
    """
    log = logs.get("runtime")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_supervise(main, drain_s))
    except BaseException as error:  # the one broad catch: whatever ends a service is told
        user_error = _find_user_error(error)
        if user_error is not None:
            complain(user_error)
            return EXIT_USER_ERROR
        log.critical("service_failed", exc_info=error)
        return EXIT_FAILED


def complain(error: UserError) -> None:
    """Write a user's error to stderr: what is wrong, then what to change."""
    hint = f"; {error.hint}" if error.hint else ""
    sys.stderr.write(f"error: {error}{hint}\n")


class _Ended(Exception):
    """The service's main returned; its remaining tasks are no longer needed."""


async def _supervise(main: ServiceMain, drain_s: float) -> int:
    log = logs.get("runtime")
    loop = asyncio.get_running_loop()
    deadline = asyncio.timeout(None)
    try:
        async with deadline, asyncio.TaskGroup() as group:
            runtime = Runtime(group)

            def on_signal(number: signal.Signals) -> None:
                if runtime.stop.is_set():
                    log.warning("second_signal_ends_at_once", signal=number.name)
                    os._exit(SIGNAL_EXIT_BASE + number)
                log.info("draining", signal=number.name, drain_s=drain_s)
                if runtime.health.state is not HealthState.FAILED:
                    runtime.health.move(HealthState.DRAINING, number.name)
                runtime.stop.set()
                deadline.reschedule(loop.time() + drain_s)

            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, on_signal, number)
            await main(runtime)
            _end()
    except* _Ended:
        log.info("stopped")
    except* TimeoutError:
        if not deadline.expired():
            raise
        log.warning("drain_deadline_passed", drain_s=drain_s)
    return EXIT_UNDRAINED if deadline.expired() else 0


def _end() -> NoReturn:
    raise _Ended


def _find_user_error(error: BaseException) -> UserError | None:
    return next((leaf for leaf in _leaves(error) if isinstance(leaf, UserError)), None)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
