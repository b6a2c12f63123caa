"""From a ledger to the spans of its trace. Pure.

Laid out one after the other in the order of the stages, each as long as the ledger says: the sum is the request's wall time.
In reality `decode` and `decode_wait` alternate at every step; a span for each pause would be thousands, so each is drawn as one span
of the summed length, and the root says so (`llm.span_layout: sequential`).
Ids are derived from the root's, so that a ledger that comes twice makes the same spans twice and not two trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from hashlib import blake2b
from itertools import accumulate

import msgspec

from services.tracer import names
from services.tracer.attributes import Attributes, Group
from services.tracer.moments import Event, losses, stage_events
from services.tracer.request_attributes import (
    OPERATIONS,
    Context,
    error_of,
    root_attributes,
    root_group,
    shared_attributes,
    shared_group,
)
from shared.ids import ServiceName
from shared.messages import STAGES, Ledger, Stage

TRACE_ID_BYTES, SPAN_ID_BYTES = 16, 8
SAMPLED = 0x01
HAS_IS_REMOTE, IS_REMOTE = 0x100, 0x200
"""Bits of a span's flags above those of W3C: whether it is known where the parent ran, and that it was another process."""
ALL_STAGES = tuple(range(len(STAGES)))
_DRAFT_NUMBER = len(STAGES) + 1
_DECODE = STAGES.index(Stage.DECODE)
NO_GROUP = Group(())


class Kind(IntEnum):
    """OTLP's kinds of spans that we use."""

    INTERNAL = 1
    SERVER = 2
    PRODUCER = 4


class Span(msgspec.Struct, frozen=True, gc=False):
    """One span. The trace's `shared` attributes are its own as well."""

    span_id: bytes
    parent_id: bytes
    """Empty: none."""
    name: str
    kind: Kind
    begin_ns: int
    end_ns: int
    flags: int
    group: Group
    attributes: Attributes
    events: Sequence[Event] = ()
    error: str | None = None
    """Code of the error; None: the status is not set."""


class Row(msgspec.Struct, frozen=True, gc=False):
    """The stage spans without events, which are most: they differ in number, times and `llm.stage` only."""

    numbers: tuple[int, ...]
    """Indices into `STAGES`."""
    root_id: bytes
    ends_us: list[int]
    """Unix time in µs at which each of `STAGES` begins, and at last the end."""
    flags: int
    is_named: bool
    """Whether the spans may carry `llm.stage`."""

    def spans(self) -> list[Span]:
        """Return them one by one."""
        return [self.span(number) for number in self.numbers]

    def span(self, number: int, events: Sequence[Event] = ()) -> Span:
        """Return one of the stages."""
        stage = STAGES[number].value
        return Span(
            child_id(self.root_id, number + 1),
            self.root_id,
            stage,
            Kind.INTERNAL,
            self.ends_us[number] * 1000,
            self.ends_us[number + 1] * 1000,
            self.flags,
            NO_GROUP,
            ((names.STAGE, stage),) if self.is_named else (),
            events,
        )


class Trace(msgspec.Struct, frozen=True, gc=False):
    """The spans of one request."""

    trace_id: bytes
    trace_state: str
    group: Group
    shared: Attributes
    root: Span
    row: Row
    others: list[Span]
    """Children that are not in the row: stages with events, drafts."""

    @property
    def spans(self) -> list[Span]:
        """All of them, the root first."""
        return [self.root, *self.row.spans(), *self.others]


def ids_of(ledger: Ledger) -> tuple[bytes, bytes]:
    """Return the trace id and the root's span id; derived from the request's id where a request was refused before it had any."""
    trace_id, root_id = ledger.trace_id, ledger.span_id
    if len(trace_id) != TRACE_ID_BYTES:
        trace_id = blake2b(ledger.request.encode(), digest_size=TRACE_ID_BYTES).digest()
    if len(root_id) != SPAN_ID_BYTES:
        root_id = blake2b(ledger.request.encode(), digest_size=SPAN_ID_BYTES).digest()
    return trace_id, root_id


def child_id(root_id: bytes, number: int) -> bytes:
    """Return the id of a child: its first seven bytes are the root's, which makes them cheap to compress."""
    return root_id[:-1] + bytes((root_id[-1] ^ number,))


def trace_of(ledger: Ledger, context: Context) -> Trace:
    """Return the trace of a request: root, stages, drafts, as many spans as `context.max_spans` allows."""
    trace_id, root_id = ids_of(ledger)
    hidden = context.hidden
    row = Row(
        _chosen(ledger, context.stages, room=context.max_spans - 1),
        root_id,
        list(accumulate(ledger.us, initial=ledger.began_unix_us)),
        ledger.trace_flags & 0xFF | SAMPLED | HAS_IS_REMOTE,
        not hidden.hides(names.STAGE),
    )
    count = len(row.numbers)
    others: list[Span] = []
    if ledger.drafted_tokens and count + 1 < context.max_spans:
        others.append(_draft(ledger, context, row))
    wanted = len(_wanted(context.stages)) + bool(ledger.drafted_tokens)
    dropped = wanted - count - len(others)
    row = _with_events(ledger, context, row, others)
    return Trace(
        trace_id,
        context.trace_state,
        shared_group(ledger, context),
        hidden.shown(shared_attributes(ledger)),
        _root(ledger, context, root_id, dropped_spans=dropped),
        row,
        others,
    )


def _wanted(stages: tuple[str, ...]) -> tuple[int, ...]:
    """Return the numbers of the stages that are wanted."""
    return tuple(n for n in ALL_STAGES if STAGES[n] in stages) if stages else ALL_STAGES


def _chosen(ledger: Ledger, wanted: tuple[str, ...], *, room: int) -> tuple[int, ...]:
    """Return the stages to draw: all that are wanted, or the longest of them where there is no room for all."""
    stages = _wanted(wanted)
    if room >= len(stages):
        return stages
    return tuple(sorted(sorted(stages, key=lambda n: -ledger.us[n])[: max(0, room)]))


def _with_events(ledger: Ledger, context: Context, row: Row, others: list[Span]) -> Row:
    """Move the stages that have events out of the row."""
    happened = stage_events(ledger, context.hidden)
    if not happened:
        return row
    for stage, told in happened.items():
        number = STAGES.index(stage)
        if number in row.numbers:
            at_ns = row.ends_us[number] * 1000
            others.append(row.span(number, [Event(name, at_ns, pairs) for name, pairs in told]))
    kept = tuple(number for number in row.numbers if STAGES[number] not in happened)
    return msgspec.structs.replace(row, numbers=kept)


def _root(ledger: Ledger, context: Context, root_id: bytes, *, dropped_spans: int) -> Span:
    remote = IS_REMOTE if ledger.parent_id else 0
    return Span(
        root_id,
        ledger.parent_id,
        _name(ledger.kind, context.service),
        Kind.SERVER,
        ledger.began_unix_us * 1000,
        (ledger.began_unix_us + ledger.wall_us) * 1000,
        ledger.trace_flags & 0xFF | SAMPLED | HAS_IS_REMOTE | remote,
        root_group(ledger, context),
        context.hidden.shown(root_attributes(ledger, dropped_spans=dropped_spans)),
        losses(ledger, context) if ledger.attempts else (),
        error_of(ledger),
    )


def _name(kind: str, service: ServiceName) -> str:
    operation = OPERATIONS.get(kind)
    return f"{operation} {service}" if operation else "request"


def _draft(ledger: Ledger, context: Context, row: Row) -> Span:
    """Return the drafts of speculative decoding, all in one, as long as decode: their own time is not known."""
    attributes: Attributes = (
        (names.STAGE, Stage.DECODE.value),
        (names.DRAFTED_TOKENS, ledger.drafted_tokens),
        (names.ACCEPTED_TOKENS, ledger.accepted_tokens),
    )
    is_drawn = _DECODE in row.numbers
    return Span(
        child_id(row.root_id, _DRAFT_NUMBER),
        child_id(row.root_id, _DECODE + 1) if is_drawn else row.root_id,
        names.DRAFT_SPAN,
        Kind.PRODUCER,
        row.ends_us[_DECODE] * 1000,
        row.ends_us[_DECODE + 1] * 1000,
        row.flags,
        NO_GROUP,
        context.hidden.shown(attributes),
    )
