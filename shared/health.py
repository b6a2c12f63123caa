"""What a process says about itself: starting, ready, draining or failed, and why. A value holder without I/O."""

from __future__ import annotations

from enum import StrEnum

from typing_extensions import override

from shared.transitions import Transitions


class HealthState(StrEnum):
    """Life of a process as its health page shows it."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


_LIFE: Transitions[HealthState, HealthState] = Transitions(
    "health",
    {
        HealthState.STARTING: {s: s for s in HealthState},
        HealthState.READY: {s: s for s in HealthState},
        HealthState.DRAINING: {s: s for s in (HealthState.DRAINING, HealthState.FAILED)},
        HealthState.FAILED: {HealthState.FAILED: HealthState.FAILED},
    },
)


class Health:
    """The current state and its reason. Nothing leads back from draining, nothing out of failed."""

    def __init__(self) -> None:
        self.state = HealthState.STARTING
        self.reason = ""

    def move(self, state: HealthState, reason: str = "") -> None:
        """Change the state. Raises `IllegalTransition`."""
        self.state = _LIFE.next(self.state, state)
        self.reason = reason

    @property
    def is_ready(self) -> bool:
        """Whether new work is welcome."""
        return self.state is HealthState.READY

    @override
    def __repr__(self) -> str:
        return f"<Health {self.state}{': ' if self.reason else ''}{self.reason}>"
