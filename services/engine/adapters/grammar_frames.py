"""What an engine and its grammar builder say to each other: values; frames as in `render_frames`. No I/O."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What building one grammar may take."""

    cpu_s: float
    """Processor time of all threads together: as much on a busy machine as on a quiet one."""
    wall_s: float = 30.0
    memory_bytes: int = 512 << 20
    """Beyond what the process has at the beginning."""


class Load(msgspec.Struct, frozen=True, array_like=True, tag="load"):
    """First frame to a builder: what it must know of the model."""

    setup: bytes


class Build(msgspec.Struct, frozen=True, array_like=True, tag="build"):
    """Build a grammar and throw it away."""

    number: int
    kind: str
    spec: str


class Outcome(StrEnum):
    """What became of a build."""

    BUILT = "built"
    INVALID = "invalid"
    """The message says why there is no such grammar."""
    TOO_COSTLY = "too_costly"
    """It took more processor time or memory than it may, or broke the process that built it."""
    TOO_SLOW = "too_slow"
    """It had not had its processor time when the other deadline passed: the machine is busy, and the grammar may be a good one."""


class Built(msgspec.Struct, frozen=True, array_like=True):
    """A build is over."""

    number: int
    outcome: Outcome
    message: str = ""
