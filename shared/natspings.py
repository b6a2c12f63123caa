"""PINGs to the NATS server: round trips for those who wait for one, and the watch over whether it answers at all."""

from __future__ import annotations

import asyncio

from shared.errors import BusClosed
from shared.natsclient import Client, errors

PING_LIMIT_S = 60.0
"""Longer than a dead connection stays unnoticed: only then is it safe to give a PING up (see `Pings.ping`)."""
PROBE_S = 0.5
ANSWER_S = 0.5
"""A server that has not answered a PING for so long is not heard. With the pause between two PINGs and between two heartbeats this is
less than the silence that means death."""
TROUBLE = (errors.Error, OSError)
"""What the client's calls raise while a connection breaks."""


class Pings:
    """All PINGs of one client."""

    def __init__(self, client: Client, group: asyncio.TaskGroup) -> None:
        self._client = client
        self._group = group
        self._clock = asyncio.get_running_loop().time
        self._under_way: set[asyncio.Task[bool]] = set()
        self._asked_s: float | None = None
        """When the probe that waits for its answer left."""

    @property
    def are_late(self) -> bool:
        """Whether the server has not answered for a while."""
        return self._asked_s is not None and self._clock() - self._asked_s > ANSWER_S

    async def probe_forever(self) -> None:
        """Find out whether the server answers, long before the client takes the connection for dead."""
        while True:
            if self._client.is_connected:
                self._asked_s = self._clock()
                await self.ping()
                self._asked_s = None
            await asyncio.sleep(PROBE_S)

    async def ping(self) -> bool:
        """Return whether the server answered a PING; false where the connection broke meanwhile.

        The PING is a task of its own which the waiter does not cancel: in nats-py 2.16 the late answer to a PING
        that was given up ends the client's reading task.
        """
        pong = self._pong()
        try:
            ping = self._group.create_task(pong, name="bus ping")
        except RuntimeError as error:
            pong.close()
            raise BusClosed("the service is ending") from error
        self._under_way.add(ping)
        ping.add_done_callback(self._under_way.discard)
        await asyncio.wait({ping})
        return not ping.cancelled() and ping.result()

    def cancel(self) -> None:
        """Give all up: the connection is gone."""
        for ping in self._under_way:
            ping.cancel()

    async def _pong(self) -> bool:
        try:
            await self._client.flush(timeout=PING_LIMIT_S)  # type: ignore[arg-type] # int by its hint only
        except TROUBLE:
            return False
        return True
