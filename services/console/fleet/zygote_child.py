"""Engines as children of one zygote: the ten seconds of imports are spent once, while the rest of the platform starts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

from shared.errors import UserError
from shared.processes.child import Child, log_tail
from shared.zygote import ZygoteClient, ZygoteGone

PRELOAD_S = 300.0
"""Deadline of the imports; 10 s on a quiet machine with byte code, minutes on a cold disk without."""
MODULE = "services.engine.zygote"


class EngineNursery:
    """Keeps a zygote and starts engines from it; a zygote that ended is replaced at the next start of an engine."""

    def __init__(self, group: asyncio.TaskGroup, *, env: Mapping[str, str], log: Path) -> None:
        self._group = group
        self._env = dict(env)
        self._log = log
        self._zygote: ZygoteClient | None = None
        self._starting = asyncio.Lock()

    async def warm(self) -> None:
        """Begin the imports; they go on while the caller does other things. Raises `UserError`."""
        async with self._starting:
            await self._alive()

    async def spawn(self, args: list[str], *, env: Mapping[str, str], log: Path) -> Child:
        """Fork an engine, waiting for the imports where they still run. Raises `UserError`, `OSError`."""
        try:
            async with self._starting:
                zygote = await self._alive()
                await zygote.ready(PRELOAD_S)
            return await zygote.spawn(args, env=env, log=log)
        except ZygoteGone as error:
            raise UserError(
                f"the engines' imports failed: {error}\n{log_tail(self._log)}",
                hint=f"the whole log: {self._log}",
            ) from error

    async def _alive(self) -> ZygoteClient:
        if self._zygote is None or self._zygote.is_gone:
            argv = [sys.executable, "-m", MODULE, "--preload", "vllm"]
            try:
                self._zygote = await ZygoteClient.start(
                    argv, env=self._env, log=self._log, group=self._group
                )
            except OSError as error:
                raise UserError(f"cannot start the engines' zygote: {error}") from error
        return self._zygote

    async def stop(self) -> None:
        """End the zygote, and with it what still runs of its children. A second call changes nothing."""
        if self._zygote is not None:
            await self._zygote.stop()


class EngineLauncher:
    """Starts one engine from the nursery, again and again."""

    def __init__(
        self,
        name: str,
        nursery: EngineNursery,
        args: list[str],
        *,
        env: Mapping[str, str],
        log: Path,
    ) -> None:
        self.name = name
        self.log = log
        self._nursery = nursery
        self._args = args
        self._env = dict(env)

    async def start(self) -> Child:
        """Start a new life; output is appended to the log."""
        return await self._nursery.spawn(self._args, env=self._env, log=self.log)
