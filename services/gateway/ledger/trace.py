"""W3C trace context, level 2: reads the caller's, makes the root span of a request, writes it down for engine and caller. Pure.

A caller without a (valid) context gets a new trace with the flags 03: `sampled`, since every request is recorded here and what is kept
is decided at its end, and `random`, since the id is.
A caller's flags stay as they are: who says 00 is told so again, and decides for those behind.
"""

from __future__ import annotations

import re

import msgspec

ID_BITS = 192
"""Random bits for a trace id (128) and a span id (64)."""
TRACE_BYTES = 16
NOT_ZERO = 1 << 191 | 1
"""Set in both ids, since one of zeros alone is none; consistent sampling looks at the trace id's low 56 bits."""
NEW_FLAGS = 0x03
KNOWN_FLAGS = 0x03
"""`sampled` and `random`; others mean nothing yet and are not passed on."""
MAX_STATE_CHARS = 512
MAX_STATE_MEMBERS = 32
LARGE_MEMBER_CHARS = 128
"""Where the state is too long, members beyond this go first."""

_PARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
_MEMBER = re.compile(r"([a-z0-9][a-z0-9_*/@-]{0,255})=[ -+\--<>-~]{0,255}[!-+\--<>-~]")


class TraceContext(msgspec.Struct, frozen=True):
    """The place of one request in its trace."""

    parent: str
    """Our `traceparent`: the trace, the root span of this request, the flags."""
    trace_id: bytes
    """16 bytes, the caller's where it sent one."""
    span_id: bytes
    """8 bytes: the root span of this request."""
    flags: int
    parent_id: bytes = b""
    """8 bytes: the caller's span; empty: none."""
    state: str = ""
    """`tracestate`, as it is passed on."""

    def fields(self) -> dict[str, str]:
        """Return the header fields that continue the trace below this request."""
        if not self.state:
            return {"traceparent": self.parent}
        return {"traceparent": self.parent, "tracestate": self.state}


def continue_trace(parent: str | None, state: str | None, *, random_bits: int) -> TraceContext:
    """Return the context of a request from its header fields; `random_bits` are `ID_BITS` for our ids."""
    ids = (random_bits | NOT_ZERO).to_bytes(ID_BITS // 8, "big")
    span_id = ids[TRACE_BYTES:]
    given = _PARENT.fullmatch(parent) if parent is not None else None
    if given is None or (given[1] == "00" and given[5] is not None):
        trace_id = ids[:TRACE_BYTES]
        own = f"00-{trace_id.hex()}-{span_id.hex()}-{NEW_FLAGS:02x}"
        return TraceContext(own, trace_id, span_id, NEW_FLAGS)
    flags = int(given[4], 16) & KNOWN_FLAGS
    return TraceContext(
        f"00-{given[2]}-{span_id.hex()}-{flags:02x}",
        bytes.fromhex(given[2]),
        span_id,
        flags,
        bytes.fromhex(given[3]),
        valid_state(state) if state else "",
    )


def valid_state(text: str) -> str:
    """Return a `tracestate` as it may be passed on: nothing where it breaks the rules, shortened by whole members where it is too long."""
    members = [stripped for member in text.split(",") if (stripped := member.strip(" \t"))]
    if len(members) > MAX_STATE_MEMBERS:
        return ""
    keys = {match[1] for member in members if (match := _MEMBER.fullmatch(member))}
    if len(keys) < len(members):
        return ""
    if len(",".join(members)) > MAX_STATE_CHARS:
        members = _shortened(members)
    return ",".join(members)


def _shortened(members: list[str]) -> list[str]:
    """Drop members until they fit: the large ones first, then from the end; the left ones are the latest."""
    for least_chars in (LARGE_MEMBER_CHARS + 1, 0):
        for index in range(len(members) - 1, -1, -1):
            if len(",".join(members)) <= MAX_STATE_CHARS:
                return members
            if len(members[index]) >= least_chars:
                del members[index]
    return members
