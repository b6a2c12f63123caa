"""Engines as children of a zygote: what is slow to import is imported once, while the rest of the platform starts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from services.host.ports import NotNow
from shared.processes.child import Child, log_size, log_tail
from shared.zygote import ZygoteClient, ZygoteGone

PRELOAD_S = 300.0
"""Deadline of vLLM's imports; 10 s on a quiet machine with byte code, minutes on a cold disk without."""
Preload = Literal["vllm", "none"]
MODULE = "services.engine.zygote"


class Nursery:
    """Keeps a zygote and starts engines from it; a zygote that ended is replaced at the next start of an engine."""

    def __init__(
        self,
        preload: Preload,
        *,
        group: asyncio.TaskGroup,
        env: Mapping[str, str],
        log: Path,
    ) -> None:
        self._preload = preload
        self._group = group
        self._env = dict(env)
        self._log = log
        self._log_from = 0
        self._zygote: ZygoteClient | None = None
        self._starting = asyncio.Lock()

    async def warm(self) -> None:
        """Begin the imports; they go on while the caller does other things. Raises `NotNow`."""
        async with self._starting:
            await self._alive()

    async def ready(self) -> None:
        """Return when the imports are done. Raises `NotNow`."""
        try:
            async with self._starting:
                zygote = await self._alive()
            await zygote.ready(PRELOAD_S)
        except ZygoteGone as error:
            raise self._failed(error) from error

    async def spawn(self, args: list[str], *, env: Mapping[str, str], log: Path) -> Child:
        """Fork an engine. Raises `NotNow`."""
        await self.ready()
        assert self._zygote is not None
        try:
            return await self._zygote.spawn(args, env=env, log=log)
        except ZygoteGone as error:
            raise self._failed(error) from error
        except OSError as error:
            raise NotNow(f"it cannot be started: {error}") from error

    async def _alive(self) -> ZygoteClient:
        if self._zygote is None or self._zygote.is_gone:
            argv = [sys.executable, "-m", MODULE, "--preload", self._preload]
            self._log_from = log_size(self._log)
            try:
                self._zygote = await ZygoteClient.start(
                    argv, env=self._env, log=self._log, group=self._group
                )
            except OSError as error:
                raise NotNow(f"the engines' zygote cannot be started: {error}") from error
        return self._zygote

    def _failed(self, error: ZygoteGone) -> NotNow:
        words = log_tail(self._log, since=self._log_from)
        return NotNow(f"the engines' imports failed: {error}\n{words}\nthe whole log: {self._log}")

    async def stop(self) -> None:
        """End the zygote, and with it what still runs of its children. A second call changes nothing."""
        if self._zygote is not None:
            await self._zygote.stop()
