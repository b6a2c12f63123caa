"""OpenTelemetry's part of a W3C `tracestate`: the sampling threshold `th` and the randomness `rv`. Pure.

Consistent probability sampling: a trace is kept where its randomness, 56 bits, is not below the threshold; so samplers of the same
probability keep the same traces. The threshold of a probability p is (1 − p)·2⁵⁶; it is written as hex without trailing zeros.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

BITS = 56
SPACE = 1 << BITS
_DIGITS = BITS // 4
_TH = re.compile(r"[0-9a-f]{1,14}")
_RV = re.compile(r"[0-9a-f]{14}")
MAX_MEMBERS = 32
"""W3C's bound of list members; the oldest is the last."""


class OtState(msgspec.Struct, frozen=True, gc=False):
    """What `ot=` in a tracestate says."""

    threshold: int | None = None
    """What samplers before us applied; None: nothing, or nothing legible."""
    randomness: int | None = None
    """Explicit randomness instead of that of the trace id."""


_NOTHING = OtState()


def threshold_of(probability: float) -> int:
    """Return the threshold that keeps this share of all traces; `SPACE` keeps none."""
    return SPACE - round(min(1.0, max(0.0, probability)) * SPACE)


def randomness_of(trace_id: bytes) -> int:
    """Return the last 56 bits of a trace id."""
    return int.from_bytes(trace_id[-7:])


def read(trace_state: str) -> OtState:
    """Return what a tracestate tells of sampling; what is not legible counts as absent."""
    if "ot=" not in trace_state:
        return _NOTHING
    parts = dict(_parts(_split(trace_state)[0]))
    th, rv = parts.get("th", ""), parts.get("rv", "")
    return OtState(
        int(th.ljust(_DIGITS, "0"), 16) if _TH.fullmatch(th) else None,
        int(rv, 16) if _RV.fullmatch(rv) else None,
    )


@lru_cache(maxsize=1024)
def write(trace_state: str, threshold: int | None) -> str:
    """Return the tracestate with this threshold, our member first as W3C wants of the one who changed it; None takes it out."""
    ours, others = _split(trace_state) if trace_state else ("", [])
    sub = [f"{key}:{value}" for key, value in _parts(ours) if key != "th"]
    if threshold is not None:
        sub.insert(0, f"th:{threshold:014x}".rstrip("0") if threshold else "th:0")
    if sub:
        others = ["ot=" + ";".join(sub), *others][:MAX_MEMBERS]
    return ",".join(others)


def _split(trace_state: str) -> tuple[str, list[str]]:
    """Return the value of `ot` and the members of others."""
    ours, others = "", []
    for member in trace_state.split(","):
        key, _, value = member.strip().partition("=")
        if key == "ot":
            ours = value
        elif key:
            others.append(member.strip())
    return ours, others


def _parts(ours: str) -> list[tuple[str, str]]:
    return [
        (key, value) for key, _, value in (part.partition(":") for part in ours.split(";")) if key
    ]
