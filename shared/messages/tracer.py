"""What a tracer says of itself."""

from __future__ import annotations

from shared.ids import TracerId
from shared.messages.parts import Count, Message


class TracerHeartbeat(Message, tag="tracer.heartbeat.v1", frozen=True, kw_only=True):
    """A tracer is alive: each 500 ms."""

    tracer: TracerId
    beat: Count
    ledgers: Count = 0
    """Requests it has seen."""
    kept: Count = 0
    """Traces that its sampling kept."""
    exported: Count = 0
    """Traces that a collector has taken."""
    dropped: Count = 0
    """Traces lost: no room while the collector was slow or away."""
    missed: Count = 0
    """Times that messages to it may have been lost."""
    level: Count = 0
    """How far it has taken itself back because of its own cost: 0 not, 1 fewer traces, 2 only failures."""
    url: str = ""
    """Its metrics page."""
