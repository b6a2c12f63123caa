"""Deltas of one loop tick, gathered to one message for each gateway.

A step of the backend hands over its pieces one by one in a single tick, so a tick's worth is a step's worth.
A message is closed early where the next delta would take it past the bound.
"""

from __future__ import annotations

from collections.abc import Callable

from typing_extensions import override

from shared.ids import EngineId, GatewayId
from shared.messages import Delta, TokenBatch


class _Open:
    """The message being filled for one gateway."""

    __slots__ = ("deltas", "size")

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.size = 0


class Outbox:
    """What waits for the end of the tick."""

    def __init__(self, engine: EngineId, *, max_bytes: int, on_first: Callable[[], object]) -> None:
        self._engine = engine
        self._max_bytes = max_bytes
        self._on_first = on_first
        """Called with the first delta since `take`: to have `take` called at the end of the tick."""
        self._open: dict[GatewayId, _Open] = {}
        self._closed: list[TokenBatch] = []

    @override
    def __repr__(self) -> str:
        return f"<Outbox {len(self._closed)} closed, {len(self._open)} open>"

    def add(self, gateway: GatewayId, delta: Delta, size: int) -> None:
        """Take a delta of `size` bytes."""
        message = self._open.get(gateway)
        if message is None:
            if not self._open:
                self._on_first()
            message = self._open[gateway] = _Open()
        elif message.size + size > self._max_bytes:
            self._close(gateway, message)
            message = self._open[gateway] = _Open()
        message.deltas.append(delta)
        message.size += size

    def take(self) -> list[TokenBatch]:
        """Return the messages in order and begin anew."""
        for gateway, message in self._open.items():
            self._close(gateway, message)
        self._open.clear()
        closed, self._closed = self._closed, []
        return closed

    def _close(self, gateway: GatewayId, message: _Open) -> None:
        self._closed.append(TokenBatch(gateway=gateway, engine=self._engine, deltas=message.deltas))
