"""Answers the console's questions about captured prompts; see `capture`."""

from __future__ import annotations

from typing_extensions import override

from services.gateway.capture import CaptureRing
from shared import logs
from shared.bus import Bus
from shared.clock import Clock
from shared.ids import GatewayId
from shared.messages import Captured, CaptureQuery, CaptureState, CaptureSwitch


class CaptureDesk:
    """The shell of a `CaptureRing`."""

    def __init__(self, bus: Bus, ring: CaptureRing, *, gateway: GatewayId, clock: Clock) -> None:
        self._bus = bus
        self._ring = ring
        self._gateway = gateway
        self._clock = clock
        self._log = logs.get("capture").bind(gateway=gateway)

    @override
    def __repr__(self) -> str:
        return f"<CaptureDesk {self._ring!r}>"

    async def listen(self) -> None:
        """Answer from now on."""
        await self._bus.serve(CaptureSwitch, self._on_switch, max_pending=8, gateway=self._gateway)
        await self._bus.serve(CaptureQuery, self._on_query, max_pending=8, gateway=self._gateway)

    async def _on_switch(self, order: CaptureSwitch) -> CaptureState:
        now = self._clock()
        if order.seconds is not None:
            self._ring.switch(order.service, order.seconds, now=now)
            self._log.warning("capture_switched", captured=order.service, seconds=order.seconds)
        held = self._ring.held(order.service, now=now)
        return CaptureState(
            left_s=held.left_s,
            requests=held.requests,
            bytes=held.size,
            passed_over=held.passed_over,
        )

    async def _on_query(self, query: CaptureQuery) -> Captured:
        found = self._ring.find(query.request, now=self._clock())
        return Captured(found=found, services=self._ring.services)
