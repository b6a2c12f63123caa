"""Lifecycles as tables: state → event → next state, every state present, terminal states with no exits.

Pure; side effects belong to the caller, after the machine has accepted the event.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

from typing_extensions import override

S = TypeVar("S", bound=Hashable)
E = TypeVar("E", bound=Hashable)


class IllegalTransition(Exception):
    """The table has no cell for this event in this state; nothing has changed."""

    def __init__(self, table: str, state: object, event: object) -> None:
        super().__init__(f"{table}: no {event} in state {state}")
        self.state = state
        self.event = event


class Transitions(Generic[S, E]):
    """One lifecycle."""

    def __init__(self, name: str, rows: Mapping[S, Mapping[E, S]]) -> None:
        targets = {target for row in rows.values() for target in row.values()}
        if missing := targets - rows.keys():
            raise ValueError(f"{name}: states without a row: {missing}")
        self._name = name
        self._rows = {state: dict(row) for state, row in rows.items()}

    def next(self, state: S, event: E) -> S:
        """Return the state after an event. Raises `IllegalTransition`."""
        target = self._rows[state].get(event)
        if target is None:
            raise IllegalTransition(self._name, state, event)
        return target

    def is_terminal(self, state: S) -> bool:
        """Return whether no event leads out of the state."""
        return not self._rows[state]

    @override
    def __repr__(self) -> str:
        return f"<Transitions {self._name} {len(self._rows)} states>"
