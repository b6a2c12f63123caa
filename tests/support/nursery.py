"""A zygote and its children, for tests: started, awaited with deadlines, ended."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from shared.zygote import ZygoteChild, ZygoteClient

ROOT = Path(__file__).resolve().parents[2]
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}  # noqa: TID251 - handed to a child
DEADLINE_S = 20.0


class Nursery:
    """A zygote that is ready, and a folder for its children's logs."""

    def __init__(self, client: ZygoteClient, folder: Path, name: str = "child") -> None:
        self.client = client
        self.log = folder / f"{name}.log"

    async def spawn(self, *argv: str, **env: str) -> ZygoteChild:
        """Fork a child."""
        return await self.client.spawn(argv, env=env, log=self.log)

    async def said(self, name: str, *, deadline_s: float = DEADLINE_S) -> str:
        """Return what a child said last as `name=…`, when it has."""
        await until(lambda: f"\n{name}=" in f"\n{self.log.read_text()}", deadline_s=deadline_s)
        return f"\n{self.log.read_text()}".rpartition(f"\n{name}=")[2].partition("\n")[0]


def with_zygote(
    folder: Path,
    argv: Sequence[str],
    scenario: Callable[[Nursery], Awaitable[None]],
    *,
    deadline_s: float = DEADLINE_S,
    **env: str,
) -> None:
    """Run a scenario on a zygote of its own, with `env` on top of the environment."""

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            client = await ZygoteClient.start(
                argv, env=ENV | env, log=folder / "zygote.log", group=group
            )
            try:
                await client.ready(deadline_s)
                await scenario(Nursery(client, folder))
            finally:
                await client.stop()

    asyncio.run(main())


async def ended(child: ZygoteChild, *, deadline_s: float = DEADLINE_S) -> int:
    """Return the code of a child that ends."""
    async with asyncio.timeout(deadline_s):
        return await child.wait()


async def until(is_so: Callable[[], bool], *, deadline_s: float = DEADLINE_S) -> None:
    """Return when it is so."""
    async with asyncio.timeout(deadline_s):
        while not is_so():  # noqa: ASYNC110 - other processes set no event of ours
            await asyncio.sleep(0.01)


async def gone(pid: int) -> None:
    """Return when there is no such process, or only its remains."""
    await until(lambda: not is_running(pid))


def is_running(pid: int) -> bool:
    """Return whether a process is there that is no zombie."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
