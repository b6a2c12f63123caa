"""`shared.bus.Bus` in memory: a hub, and one bus for each participant. Passes the same contract suite as the NATS bus.

Everything goes through the codec, so what cannot be encoded fails here too. For tests and simulations, with seeded faults.
"""

from __future__ import annotations

import asyncio
from typing import Self

from shared.memwire import OUTBOUND_BYTES, Faults, MemoryHub, MemoryWire
from shared.messages import ROUTES, Message
from shared.subjects import fill
from shared.typedbus import TypedBus

__all__ = ["Faults", "MemoryBus", "MemoryHub", "set_faults"]


class MemoryBus(TypedBus):
    """The bus of one participant. Make it with `join`."""

    def __init__(self, wire: MemoryWire, *, group: asyncio.TaskGroup, name: str) -> None:
        super().__init__(wire, group=group, name=name)
        self._memory = wire

    @classmethod
    async def join(
        cls,
        hub: MemoryHub,
        *,
        group: asyncio.TaskGroup,
        name: str,
        outbound_bytes: int = OUTBOUND_BYTES,
    ) -> Self:
        """Return a bus connected to the hub."""
        bus = cls(MemoryWire(hub, outbound_bytes=outbound_bytes), group=group, name=name)
        await bus.open()
        return bus

    def cut(self) -> None:
        """Partition this participant: what it sends waits up to the bound, what is sent to it is lost."""
        self._memory.cut()

    def heal(self) -> None:
        """End the partition, as a reconnect does."""
        self._memory.heal()
        self.report_loss("reconnect")

    def freeze(self) -> None:
        """Hold back what this participant sends and what is sent to it; it stays connected."""
        self._memory.freeze()

    def thaw(self) -> None:
        """Let what was held back go on, in order."""
        self._memory.thaw()


def set_faults(hub: MemoryHub, kind: type[Message], faults: Faults) -> None:
    """Let messages of a type suffer from now on."""
    hub.set_faults(fill(ROUTES[kind].subject, {}), faults)
