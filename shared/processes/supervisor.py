"""Keeps a set of processes alive until told to stop, then ends them in order: those that take work first, the bus last.

Decides nothing itself: `restart` says whether and when a process comes back.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
from typing_extensions import override

from shared.errors import UserError
from shared.processes.child import Child, Launcher, exit_text, log_size, log_tail
from shared.processes.restart import Again, GiveUp, Record, after_exit

KILL_AFTER_S = 5.0
"""From SIGKILL to giving up the wait: the kernel is stuck then, not we."""


class Death(msgspec.Struct, frozen=True):
    """The end of a process that it did not choose itself."""

    pid: int
    how: str
    """Such as `signal SIGKILL`."""
    log: Path


OnDeath = Callable[[Death], None]
"""Told before the process is started again; raises nothing."""


def _ignore(_: Death) -> None:
    """Nobody wants to know."""


class Kept:
    """One supervised process."""

    def __init__(self, launcher: Launcher, *, stop_s: float, on_death: OnDeath = _ignore) -> None:
        self.launcher = launcher
        self.child: Child | None = None
        self.ready = False
        """Set by whoever sees it serve; tells a bad configuration from a crash."""
        self.restarts = 0
        self.task: asyncio.Task[None] | None = None
        self._stop_s = stop_s
        self._on_death = on_death
        self._stopped = asyncio.Event()
        self._record = Record()
        self._log_from = 0
        """Where the log of this life begins: what others before it said explains nothing."""

    @override
    def __repr__(self) -> str:
        pid = self.child.pid if self.child else None
        return f"<Kept {self.launcher.name} pid={pid} ready={self.ready} restarts={self.restarts}>"

    async def keep(self, say: Callable[[str], None]) -> None:
        """Run lives until stopped. Raises `UserError` where it cannot start here."""
        clock = asyncio.get_running_loop().time
        while not self._stopped.is_set():
            born_s = clock()
            self._log_from = log_size(self.launcher.log)
            self.child = await self.launcher.start()
            code = await self.child.wait()
            if self._stopped.is_set():
                return
            self._on_death(Death(self.child.pid, exit_text(code), self.launcher.log))
            decision = after_exit(self._record, lived_s=clock() - born_s, ready=self.ready)
            await self._carry_out(decision, code, say)

    async def _carry_out(
        self, decision: Again | GiveUp, code: int, say: Callable[[str], None]
    ) -> None:
        name = self.launcher.name
        match decision:
            case GiveUp(failures):
                raise UserError(
                    f"{name} ended {failures} times before it was ready ({exit_text(code)}); the end of its log:\n"
                    f"{self.last_words()}",
                    hint=f"the whole log: {self.launcher.log}",
                )
            case Again(delay_s, record):
                say(f"{name} ended ({exit_text(code)}); starting it again in {delay_s:.1f} s")
                self._record = record
                self.ready = False
                self.restarts += 1
                await asyncio.sleep(delay_s)

    def last_words(self) -> str:
        """Return the end of what its present life, or the last one, wrote into the log."""
        return log_tail(self.launcher.log, since=self._log_from)

    def kill(self) -> None:
        """End it at once and for good; `stop` then only waits."""
        self._stopped.set()
        if self.child is not None:
            self.child.signal(signal.SIGKILL)

    async def stop(self) -> None:
        """Ask it to end, wait as long as it may drain, then end it. A second call changes nothing."""
        self._stopped.set()
        if self.child is not None:
            await self._end(self.child)
        if self.task is not None:
            self.task.cancel()  # it may wait for its next start

    async def _end(self, child: Child) -> None:
        if await self._has_ended(child, signal.SIGTERM, self._stop_s):
            return
        if await self._has_ended(child, signal.SIGKILL, KILL_AFTER_S):
            how = f"it did not end within {self._stop_s:.0f} s and was killed"
            self._on_death(Death(child.pid, how, self.launcher.log))

    async def _has_ended(self, child: Child, number: signal.Signals, wait_s: float) -> bool:
        child.signal(number)
        try:
            async with asyncio.timeout(wait_s):
                await child.wait()
        except TimeoutError:
            return False
        return True


class Supervisor:
    """All processes of the fleet, in the order in which they start."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.kept: list[Kept] = []

    def add(
        self,
        group: asyncio.TaskGroup,
        launcher: Launcher,
        *,
        stop_s: float,
        on_death: OnDeath = _ignore,
    ) -> Kept:
        """Start and keep one more process; its failure to start fails the group."""
        kept = Kept(launcher, stop_s=stop_s, on_death=on_death)
        self.kept.append(kept)
        kept.task = group.create_task(kept.keep(self._say), name=f"keep {launcher.name}")
        return kept

    async def stop(self, kept: list[Kept]) -> None:
        """End these processes side by side."""
        await asyncio.gather(*(one.stop() for one in kept))

    async def stop_all(self, last: Kept | None) -> None:
        """End everything, `last` (the bus) when all others are gone."""
        await self.stop([one for one in self.kept if one is not last])
        if last is not None:
            await last.stop()
