"""Events on the spans of a request: engines that lost it, who held it up, preemptions, fallback kernels. Pure.

The ledger counts them and does not say when each was: an event stands at the begin of its span, that of a loss at its earliest.
"""

from __future__ import annotations

import msgspec

from services.tracer import names
from services.tracer.attributes import Attributes, AttributeValue, Hidden
from services.tracer.request_attributes import Context
from shared.messages import STAGES, Ledger, Stage

_BEFORE_ROUTE = STAGES.index(Stage.ROUTE)


class Event(msgspec.Struct, frozen=True, gc=False):
    """A moment within a span."""

    name: str
    unix_ns: int
    attributes: Attributes


def losses(ledger: Ledger, context: Context) -> list[Event]:
    """Return an event for each engine that lost the request, with its black box where somebody kept one."""
    at_us = ledger.began_unix_us + sum(ledger.us[:_BEFORE_ROUTE])
    events = []
    for attempt in ledger.attempts:
        at_us += attempt.us
        pairs: list[tuple[str, AttributeValue]] = [
            (names.ENGINE_ID, attempt.engine),
            (names.WHY, attempt.why),
        ]
        if attempt.way:
            pairs.append((names.WAY, attempt.way))
        box = context.boxes.get(attempt.engine)
        if box is not None:
            pairs += [
                (names.BLACK_BOX, f"{box.host}:{box.path}"),
                (names.CAUSE, box.cause),
                (names.LAST_STEP, box.last_step),
            ]
        events.append(Event(names.ENGINE_LOST_EVENT, at_us * 1000, context.hidden.shown(pairs)))
    return events


def stage_events(ledger: Ledger, hidden: Hidden) -> dict[Stage, list[tuple[str, Attributes]]]:
    """Return what happened in which stage; empty for most requests."""
    found: dict[Stage, list[tuple[str, Attributes]]] = {}
    if ledger.blocked_by or ledger.preemptions:
        found[Stage.DECODE_WAIT] = [
            (names.BLOCKED_EVENT, hidden.shown(_blocked(blocker.request, blocker.us)))
            for blocker in ledger.blocked_by
        ]
    if ledger.preemptions:
        preempted: Attributes = (
            (names.PREEMPTIONS, ledger.preemptions),
            (names.RECOMPUTED_TOKENS, ledger.recomputed_tokens),
        )
        found[Stage.DECODE_WAIT].append((names.PREEMPTED_EVENT, hidden.shown(preempted)))
    if ledger.mode_changes:
        changed: Attributes = (
            (names.MODE, ledger.mode),
            (names.MODE_CHANGES, ledger.mode_changes),
        )
        found[Stage.DECODE] = [(names.MODE_EVENT, hidden.shown(changed))]
    return found


def _blocked(request: str, us: int) -> Attributes:
    return ((names.BLOCKED_BY, request), (names.BLOCKED_US, us))
