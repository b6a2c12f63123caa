"""Hands deltas to the bus: all of one loop tick in one message for each gateway."""

from __future__ import annotations

import asyncio

from typing_extensions import override

from services.engine.batching import Outbox
from services.engine.metrics import Counts
from shared import logs
from shared.bus import Bus
from shared.errors import HeadraceError
from shared.ids import EngineId, GatewayId
from shared.messages import Delta
from shared.quiet import Quiet


class Delivery:
    """The way out. Never waits: what the bus does not take is asked for again by who misses it."""

    def __init__(self, bus: Bus, engine: EngineId, counts: Counts, *, max_bytes: int) -> None:
        self._bus = bus
        self._counts = counts
        self._outbox = Outbox(engine, max_bytes=max_bytes)
        self._loop = asyncio.get_running_loop()
        self._log = logs.get("engine").bind(engine=engine)
        self._quiet = Quiet(self._loop.time)

    @override
    def __repr__(self) -> str:
        return f"<Delivery {self._outbox!r}>"

    def send(self, gateway: GatewayId, delta: Delta, size: int) -> None:
        """Send a delta of `size` bytes at the end of this loop tick."""
        if self._outbox.add(gateway, delta, size):
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what has been gathered now."""
        counts = self._counts
        for batch in self._outbox.take():
            counts.batches += 1
            counts.deltas += len(batch.deltas)
            try:
                self._bus.publish(batch)
            except HeadraceError as error:
                counts.unsent_batches += 1
                if times := self._quiet.due(type(error).__name__):
                    self._log.warning("token_batch_unsent", reason=str(error), times=times)
