"""Reads what an OTLP collector answers, without the classes of protobuf: `partial_success` of a response, `RetryInfo` of a gRPC status."""

from __future__ import annotations

from collections.abc import Iterator

from services.tracer.ports import Taken

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
MAX_MESSAGE_CHARS = 300
NANO = 1e-9
RETRY_INFO = b"google.rpc.RetryInfo"


class _MalformedError(Exception):
    """No protobuf."""


def taken(response: bytes, *, wire_bytes: int = 0) -> Taken:
    """Return what an `ExportTraceServiceResponse` says; one that is none counts as everything taken."""
    try:
        # partial_success = 1 { rejected_spans = 1, error_message = 2 }
        partial = _last(response, 1)
        if not isinstance(partial, bytes):
            return Taken(wire_bytes=wire_bytes)
        rejected, message = _last(partial, 1), _last(partial, 2)
    except _MalformedError:
        return Taken(wire_bytes=wire_bytes)
    said = message.decode(errors="replace") if isinstance(message, bytes) else ""
    return Taken(
        rejected_spans=rejected if isinstance(rejected, int) else 0,
        message=said[:MAX_MESSAGE_CHARS],
        wire_bytes=wire_bytes,
    )


def retry_after_s(status: bytes) -> float | None:
    """Return the pause that a `google.rpc.Status` asks for, if it does."""
    try:
        # details = 3, each an Any { type_url = 1, value = 2 }; RetryInfo { retry_delay = 1 }; Duration { seconds = 1, nanos = 2 }
        for number, detail in _fields(status):
            if number != 3 or not isinstance(detail, bytes):  # noqa: PLR2004 - a field number
                continue
            kind, value = _last(detail, 1), _last(detail, 2)
            if not isinstance(kind, bytes) or not kind.endswith(RETRY_INFO):
                continue
            delay = _last(value, 1) if isinstance(value, bytes) else None
            if isinstance(delay, bytes):
                seconds, nanos = _last(delay, 1), _last(delay, 2)
                return _number(seconds) + _number(nanos) * NANO
    except _MalformedError:
        return None
    return None


def _number(value: int | bytes | None) -> int:
    return value if isinstance(value, int) else 0


def _last(message: bytes, wanted: int) -> int | bytes | None:
    """Return the field's value; the last one counts, as protobuf has it."""
    found: int | bytes | None = None
    for number, value in _fields(message):
        if number == wanted:
            found = value
    return found


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield field numbers and values. Raises `_MalformedError`."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _read_varint(message, at)
            yield tag >> 3, value
            continue
        size, at = _size(message, at, kind)
        if at + size > len(message):
            raise _MalformedError
        yield tag >> 3, message[at : at + size]
        at += size


def _size(message: bytes, at: int, kind: int) -> tuple[int, int]:
    if kind == _LENGTH:
        return _read_varint(message, at)
    sizes = {_FIXED64: 8, _FIXED32: 4}
    if kind not in sizes:
        raise _MalformedError
    return sizes[kind], at


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:  # noqa: PLR2004 - bits of the largest varint
            raise _MalformedError
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - no more bytes follow
            return value, at
        shift += 7
