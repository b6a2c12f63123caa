"""What a process that vLLM forks for its core must do first: end with its parent, but not by its signals."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from shared import runtime


class CoreFork:
    """Hooks into `fork`; without effect except inside `guarded`, and in the processes that were forked there."""

    def __init__(self) -> None:
        self._is_guarding = False
        self._parent = 0
        os.register_at_fork(before=self._before, after_in_child=self._in_child)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Guard the forks of this thread."""
        self._is_guarding = True
        try:
            yield
        finally:
            self._is_guarding = False

    def _before(self) -> None:
        self._parent = os.getpid()

    def _in_child(self) -> None:
        if not self._is_guarding:
            return
        # Else a signal to the core would wake the parent's loop, which would take it for its own: SIGTERM would stop the engine twice.
        signal.set_wakeup_fd(-1)
        # A terminal's Ctrl-C is for the parent, which drains first.
        os.setpgid(0, 0)
        try:
            runtime.die_with_parent(self._parent, signal.SIGKILL)
        except SystemExit:
            # The parent is gone already. An exception would be swallowed here.
            os._exit(runtime.SIGNAL_EXIT_BASE + signal.SIGKILL)


CORE_FORK = CoreFork()
"""The one of this process: a hook into `fork` cannot be taken back."""
