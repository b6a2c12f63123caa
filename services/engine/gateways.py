"""Which gateways are alive, as this engine hears it.

Every message of a gateway is a sign of life. Silence is measured on a clock that runs only while we listen:
our own stall, or a bus that is away or stands still, must not look like the death of every gateway.
"""

from __future__ import annotations

from typing_extensions import override

from shared.fleet import HearingClock
from shared.ids import GatewayId


class Gateways:
    """Last sign of life of each gateway."""

    def __init__(self, *, gone_s: float) -> None:
        self._gone_s = gone_s
        self._heard_at: dict[GatewayId, float] = {}
        self._clock = HearingClock()

    @override
    def __repr__(self) -> str:
        return f"<Gateways {len(self._heard_at)} alive>"

    def __len__(self) -> int:
        return len(self._heard_at)

    def heard(self, gateway: GatewayId) -> None:
        """Note a sign of life."""
        self._heard_at[gateway] = self._clock.s

    def tick(self, now: float, *, is_listening: bool) -> list[GatewayId]:
        """Advance the clock; return and forget the gateways that have been silent too long."""
        self._clock.tick(now, is_listening=is_listening)
        silent_since = self._clock.s - self._gone_s
        gone = [name for name, heard_at in self._heard_at.items() if heard_at <= silent_since]
        for name in gone:
            del self._heard_at[name]
        return gone
