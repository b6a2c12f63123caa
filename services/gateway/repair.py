"""Takes token batches off the bus and carries out what the stream table wants: asks for resends, cancels strays, reports losses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from services.gateway import refusals
from services.gateway.calls import Calls
from services.gateway.placement import Placement
from services.gateway.streams import (
    AskResend,
    CancelStray,
    Effect,
    LossReason,
    StreamLost,
    StreamTable,
)
from shared.bus import Bus
from shared.clock import loop_clock, stamp_clock
from shared.errors import BusError, NoResponder
from shared.ids import GatewayId, StreamNo
from shared.messages import Cancel, Resend, Resent, TokenBatch

ANSWER_S = 2.0
"""Deadline of one question; three of them end a stream (see `StreamSettings.max_asks`)."""
DEAF_S = 1.5
"""Ticks come once a second: with one that is missing the bus was silent for a while."""
AT_ONCE = 64
"""Questions under way at the same time: a lost second must not become a storm."""


class Repair:
    """The reader of this gateway's tokens."""

    def __init__(
        self,
        bus: Bus,
        table: StreamTable,
        *,
        gateway: GatewayId,
        calls: Calls,
        placement: Placement,
        group: asyncio.TaskGroup,
    ) -> None:
        self._bus = bus
        self._table = table
        self._gateway = gateway
        self._calls = calls
        self._placement = placement
        self._group = group
        self._clock = loop_clock()
        self._stamp = stamp_clock()
        self._heard_at = self._clock()
        """When the bus last answered."""
        self._slots = asyncio.Semaphore(AT_ONCE)
        self.deltas = 0
        """Deltas that arrived."""
        self.resends = 0
        """Questions asked."""

    def on_batch(self, batch: TokenBatch) -> None:
        """Take what an engine sent after a step."""
        self.deltas += len(batch.deltas)
        effects = self._table.on_batch(batch, now=self._stamp())
        if effects:
            self._carry_out(effects)

    def on_loss(self, reason: str) -> None:
        """The bus may have lost messages: ask about every stream that does not move."""
        del reason
        self._table.suspect()

    def tick(self) -> None:
        """Ask about quiet streams; call about once a second. While the bus is away or stands still everybody is quiet."""
        now = self._clock()
        if self._bus.is_answering:
            self._carry_out(self._table.tick(now=now))
            if now - self._heard_at > DEAF_S:
                # To the engines this gateway was silent: they may have dropped its streams.
                self._table.suspect()
            self._heard_at = now
        elif now - self._heard_at >= self._table.max_deaf_s:
            self._carry_out(self._table.lose_all(LossReason.NO_BUS))

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case AskResend():
                    self.resends += 1
                    self._group.create_task(self._ask(effect))
                case CancelStray(engine, stream):
                    self._cancel(Cancel(engine=engine, gateway=self._gateway, stream=stream))
                case StreamLost(_, stream, reason):
                    part = self._placement.part_of(stream)
                    if part is not None:
                        self._calls.set_back(part, refusals.stream_lost(reason))

    async def _ask(self, ask: AskResend) -> None:
        question = Resend(
            engine=ask.engine, gateway=self._gateway, stream=ask.stream, from_seq=ask.from_seq
        )
        try:
            async with self._slots:
                answer = await self._bus.request(question, timeout_s=ANSWER_S)
        except NoResponder:
            self._carry_out(self._table.put_off(ask.stream, now=self._clock(), is_vain=True))
            return
        except BusError:
            self._carry_out(self._on_no_answer(ask.stream))
            return
        assert isinstance(answer, Resent)
        self._carry_out(self._table.on_resent(answer, now=self._stamp()))

    def _on_no_answer(self, stream: StreamNo) -> list[Effect]:
        if self._bus.is_answering:
            return self._table.on_no_answer(stream)
        return self._table.put_off(stream, now=self._clock(), is_vain=False)

    def _cancel(self, cancel: Cancel) -> None:
        try:
            self._bus.publish(cancel)
        except BusError:
            return
