"""What a host needs of the outside: a driver that makes a replica's process be there, wherever that is.

`adapters.processes` runs children on this machine, `adapters.compose` containers; `fake_driver` is for tests. A driver for Kubernetes fits
as well: `prepare` does nothing where an init container does it, `start` makes a unit of the replica's name, `found` takes over what an
earlier life left.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from services.host.room import Grant
from shared.errors import HeadraceError
from shared.ids import ServiceName
from shared.spec.model import LLMService

Say = Callable[[str], None]
"""Told what begins now, in a few words."""


class CannotRun(HeadraceError):
    """It will not get better by itself; the message says what to change."""


class NotNow(HeadraceError):
    """It failed, and may do better later."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A replica that is wanted."""

    name: str
    service: ServiceName
    revision: str
    spec: LLMService
    fingerprint: str = ""
    """What the model's files must be; empty: whatever they are."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What was found when it was made ready."""

    model: Path | None = None
    """Directory of the model; none: the backend loads none."""
    weight_bytes: int = 0
    fingerprint: str = ""


class Running(Protocol):
    """One life of a replica."""

    @property
    def pid(self) -> int:
        """Process id, for people; 0 where there is none here."""
        ...

    @property
    def metrics_port(self) -> int:
        """Port of its metrics page on this host; 0: none."""
        ...

    async def wait(self) -> str:
        """Return how it ended, for people, once it has and nothing of it is left. Safe to call twice."""
        ...

    async def stop(self, *, drain_s: float) -> None:
        """Let it finish what it has within `drain_s`, then end it; return when nothing of it is left."""
        ...


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A replica of an earlier life that runs."""

    order: Order
    running: Running


class Driver(Protocol):
    """A way to run replicas."""

    @property
    def kind(self) -> Literal["processes", "compose", "kubernetes"]:
        """Its name in heartbeats."""
        ...

    async def found(self) -> list[Found]:
        """Return what an earlier life of this host left and still runs; what cannot be taken over is ended. Called once, first.

        Raises `UserError`, `NotNow`.
        """
        ...

    async def prepare(self, order: Order, say: Say) -> Prepared:
        """Get ready what a start needs; may take long, may be cancelled. Raises `CannotRun`, `NotNow`."""
        ...

    async def start(self, order: Order, prepared: Prepared, grant: Grant) -> Running:
        """Begin a life; takes seconds at most. Raises `CannotRun`, `NotNow`."""
        ...

    async def close(self) -> None:
        """Let go of everything; all replicas have been stopped."""
        ...
