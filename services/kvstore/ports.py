"""What a mirror needs of its store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from services.kvstore import orders
from services.kvstore.lifecycle import RetryRule
from services.kvstore.settings import DeadlineSettings

if TYPE_CHECKING:
    from services.kvstore.mirror import Mirror


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What all mirrors of a store have in common."""

    budget_bytes: int
    deadlines: DeadlineSettings
    retry: RetryRule = RetryRule()
    parent: int
    """The store's own process."""


class Owner(Protocol):
    """What a mirror tells its store."""

    def on_state(self, mirror: Mirror) -> None:
        """Its state has changed; called after the change. Must not block."""
        ...

    def on_listed(self, mirror: Mirror, listed: orders.Listed) -> None:
        """It has these values."""
        ...

    def attach_all(self, mirror: Mirror) -> None:
        """A new process needs the regions of all engines; called before it gets any task."""
        ...
