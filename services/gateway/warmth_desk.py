"""Keeps the view of prefixes up to date: hears the engines' news, and asks for the whole where some were missed. Never waits."""

from __future__ import annotations

from typing_extensions import override

from services.gateway.warmth import WarmthView
from shared.bus import Bus
from shared.errors import BusError
from shared.ids import GatewayId
from shared.messages import EngineHeartbeat, Message, Warmth, WarmthQuery, WarmthWhole

ASK_TIMEOUT_S = 2.0


class WarmthDesk:
    """The shell of a `WarmthView`."""

    def __init__(self, bus: Bus, view: WarmthView, *, gateway: GatewayId) -> None:
        self._bus = bus
        self._view = view
        self._gateway = gateway
        self.asked = 0
        """Times that the whole was asked for."""

    @override
    def __repr__(self) -> str:
        return f"<WarmthDesk asked={self.asked} {self._view!r}>"

    @property
    def pieces(self) -> int:
        """Pieces of prompts known at engines."""
        return self._view.pieces

    async def listen(self) -> None:
        """Hear news from now on."""
        await self._bus.subscribe(Warmth, self._view.hear)

    def beat(self, beat: EngineHeartbeat) -> None:
        """Take a heartbeat of an engine that is alive."""
        if not self._view.beat(beat.engine, beat.warmth_seq):
            return
        self.asked += 1
        try:
            self._bus.ask(
                WarmthQuery(engine=beat.engine, gateway=self._gateway),
                timeout_s=ASK_TIMEOUT_S,
                on_answer=self._on_answer,
            )
        except BusError:
            return  # a later heartbeat asks again

    def _on_answer(self, answer: Message | BusError) -> None:
        # Without an answer a later heartbeat asks again.
        if isinstance(answer, WarmthWhole):
            self._view.take(answer)
