"""OTLP protobuf, written by hand for the few shapes that a trace of ours has: far below the SDK's price. Pure.

Field numbers are those of opentelemetry-proto's `trace.proto`, `common.proto`, `resource.proto` and `trace_service.proto`.
What many traces share (keys, names, groups of attributes, the frame of a stage span) is encoded once and remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from struct import Struct

from services.tracer import names
from services.tracer.attributes import Attributes, AttributeValue, Group
from services.tracer.moments import Event
from services.tracer.spans import SPAN_ID_BYTES, Kind, Row, Span, Trace, child_id
from shared.ids import ServiceName
from shared.messages import STAGES

MASK_64 = (1 << 64) - 1
STATUS_ERROR = 2
SCOPE = b"headrace.tracer"
MAX_VALUE_BYTES = 1024
"""Bound of one text: some come from callers."""
REMEMBERED = 1024

ATTRIBUTE, EVENT_ATTRIBUTE, RESOURCE_ATTRIBUTE = b"\x4a", b"\x1a", b"\x0a"
"""The field of an attribute in a span, an event, a resource."""
_FLAGS = b"\x85\x01"

_double = Struct("<d").pack
_fixed32 = Struct("<I").pack
_fixed64 = Struct("<Q").pack
_OWN = Struct("<2s8scQcQ")
_own = _OWN.pack
"""Fields of a span that no other one has: its id, begin and end."""


def _varint(number: int) -> bytes:
    number &= MASK_64
    out = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits a byte
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_KNOWN = 1 << 14
_VARINTS = tuple(map(_varint, range(_KNOWN)))


def varint(number: int) -> bytes:
    """Return a base-128 varint; a negative number as protobuf's int64 has it."""
    return _VARINTS[number] if 0 <= number < _KNOWN else _varint(number)


def block(tag: bytes, content: bytes) -> bytes:
    """Return a length-delimited field."""
    return b"%b%b%b" % (tag, varint(len(content)), content)


def text(value: str) -> bytes:
    """Return a text as UTF-8, cut between two characters where it is too long."""
    encoded = value.encode(errors="replace")
    if len(encoded) <= MAX_VALUE_BYTES:
        return encoded
    return encoded[:MAX_VALUE_BYTES].decode(errors="ignore").encode()


# --- attributes: KeyValue { key = 1, value = 2 }, AnyValue { string = 1, bool = 2, int = 3, double = 4, array = 5 }


@lru_cache(maxsize=4 * REMEMBERED)
def _frame(tag: bytes, name: str, value_tag: bytes, size: int) -> bytes:
    """Return what stands before a value of this encoded size."""
    key = block(b"\x0a", text(name))
    return b"".join(
        (
            tag,
            varint(len(key) + 1 + len(varint(len(value_tag) + size)) + len(value_tag) + size),
            key,
            b"\x12",
            varint(len(value_tag) + size),
            value_tag,
        )
    )


def _attribute(tag: bytes, name: str, value: AttributeValue) -> bytes:
    if isinstance(value, int):
        encoded = varint(value)
        kind = b"\x10" if isinstance(value, bool) else b"\x18"
        return _frame(tag, name, kind, len(encoded)) + encoded
    if isinstance(value, str):
        encoded = text(value)
        return _frame(tag, name, b"\x0a" + varint(len(encoded)), len(encoded)) + encoded
    if isinstance(value, float):
        return _frame(tag, name, b"\x21", 8) + _double(value)
    items = b"".join([block(b"\x0a", block(b"\x0a", text(item))) for item in value])
    return _frame(tag, name, b"\x2a" + varint(len(items)), len(items)) + items


def attributes(tag: bytes, pairs: Attributes) -> bytes:
    """Return attributes as fields with this tag."""
    return b"".join([_attribute(tag, name, value) for name, value in pairs])


@lru_cache(maxsize=2 * REMEMBERED)
def _group(group: Group) -> bytes:
    return attributes(ATTRIBUTE, group.pairs)


# --- spans: Span in field 2 of ScopeSpans


def spans(trace: Trace) -> bytes:
    """Return the spans of a trace, ready to stand in a ScopeSpans."""
    # What all spans of the trace have in common comes first: one piece to copy, and one match for the compressor.
    common = b"\x0a\x10%b%b%b%b" % (
        trace.trace_id,
        block(b"\x1a", text(trace.trace_state)) if trace.trace_state else b"",
        _group(trace.group),
        attributes(ATTRIBUTE, trace.shared),
    )
    parts = [_span(trace.root, common)]
    if trace.row.numbers:
        parts.append(_row(trace.row, common))
    parts += [_span(span, common) for span in trace.others]
    return b"".join(parts)


def _span(span: Span, common: bytes) -> bytes:
    has_parent = len(span.parent_id) == SPAN_ID_BYTES
    fields = [
        common,
        _FLAGS,
        _fixed32(span.flags),
        b"\x22\x08" + span.parent_id if has_parent else b"",
        _head(span.name, span.kind),
        _group(span.group),
        attributes(ATTRIBUTE, span.attributes),
        *[_event(event) for event in span.events],
        _status(span.error) if span.error is not None else b"",
        _own(b"\x12\x08", span.span_id, *_times(span.begin_ns, span.end_ns)),
    ]
    return block(b"\x12", b"".join(fields))


def _times(begin_ns: int, end_ns: int) -> tuple[bytes, int, bytes, int]:
    return b"\x39", begin_ns & MASK_64, b"\x41", end_ns & MASK_64


@lru_cache(maxsize=REMEMBERED)
def _head(name: str, kind: Kind) -> bytes:
    return block(b"\x2a", text(name)) + b"\x30" + varint(kind)


@lru_cache(maxsize=REMEMBERED)
def _status(code: str) -> bytes:
    return block(b"\x7a", block(b"\x12", text(code)) + b"\x18" + varint(STATUS_ERROR))


def _event(event: Event) -> bytes:
    at = b"\x09" + _fixed64(event.unix_ns & MASK_64)
    pairs = attributes(EVENT_ATTRIBUTE, event.attributes)
    return block(b"\x5a", at + block(b"\x12", text(event.name)) + pairs)


def _row(row: Row, common: bytes) -> bytes:
    """Return the stage spans; beside what the trace has in common they differ in id, times and what `_stage` remembers."""
    root_id, ends_us = row.root_id, row.ends_us
    common = b"%b%b%b\x22\x08%b" % (common, _FLAGS, _fixed32(row.flags), root_id)
    size = len(common) + _OWN.size
    parts: list[bytes] = []
    for number in row.numbers:
        stage = _stage(number, row.is_named)
        begin_ns, end_ns = ends_us[number] * 1000, ends_us[number + 1] * 1000
        parts += (
            b"\x12",
            varint(size + len(stage)),
            common,
            stage,
            _own(b"\x12\x08", child_id(root_id, number + 1), *_times(begin_ns, end_ns)),
        )
    return b"".join(parts)


@lru_cache(maxsize=2 * len(STAGES))
def _stage(number: int, is_named: bool) -> bytes:
    """Return what every span of a stage has."""
    stage = STAGES[number].value
    named = attributes(ATTRIBUTE, ((names.STAGE, stage),)) if is_named else b""
    return _head(stage, Kind.INTERNAL) + named


# --- the request: ResourceSpans in field 1 of ExportTraceServiceRequest


def request(groups: Mapping[ServiceName, Iterable[bytes]], *, version: str) -> bytes:
    """Return the request that hands these spans to a collector, grouped by the service that they are of."""
    scope = block(b"\x0a", block(b"\x0a", SCOPE) + block(b"\x12", text(version)))
    parts = []
    for service, encoded in groups.items():
        described = block(b"\x0a", attributes(RESOURCE_ATTRIBUTE, _resource(service, version)))
        scoped = block(b"\x12", scope + b"".join(encoded))
        parts.append(block(b"\x0a", described + scoped))
    return b"".join(parts)


def _resource(service: ServiceName, version: str) -> Attributes:
    return (
        ("service.name", service),
        ("service.namespace", "headrace"),
        ("telemetry.sdk.name", "headrace"),
        ("telemetry.sdk.language", "python"),
        ("telemetry.sdk.version", version),
    )
