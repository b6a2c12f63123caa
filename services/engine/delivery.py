"""Hands deltas to the bus: all of one loop tick in one message for each gateway."""

from __future__ import annotations

import asyncio
from functools import partial

from typing_extensions import override

from services.engine.batching import Outbox
from services.engine.metrics import Counts
from shared import logs
from shared.bus import Bus
from shared.errors import HeadraceError
from shared.ids import EngineId
from shared.quiet import Quiet


class Delivery:
    """The way out. Never waits: what the bus does not take is asked for again by who misses it."""

    def __init__(self, bus: Bus, engine: EngineId, counts: Counts, *, max_bytes: int) -> None:
        self._bus = bus
        self._counts = counts
        loop = asyncio.get_running_loop()
        self._outbox = Outbox(
            engine, max_bytes=max_bytes, on_first=partial(loop.call_soon, self._flush)
        )
        self.send = self._outbox.add
        """Send a delta to a gateway at the end of this loop tick. The outbox's own method: a call less for each token."""
        self._log = logs.get("engine").bind(engine=engine)
        self._quiet = Quiet(loop.time)

    @override
    def __repr__(self) -> str:
        return f"<Delivery {self._outbox!r}>"

    def _flush(self) -> None:
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
