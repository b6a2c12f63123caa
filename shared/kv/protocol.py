"""The contract of the store's socket: one message a packet, MessagePack, tagged; file descriptors travel beside it.

An engine's L2 region is a file in memory whose descriptor goes with `Hello`; the store copies from its slots and into them.
A slot is one value: `value_bytes` bytes at `slot * value_bytes` of the region.

The one rule that keeps tokens right: from `Load` until its `Done`, the store may write into the job's slots at any moment.
After `Done` it never does, whatever happens to the store's processes. An engine that does not want to wait for it keeps the slots aside
until `Done` comes, or until the connection and every life line that it was given have ended (a life line is the read end of a pipe whose
other end only the process that copies holds; it ends when that process has let go of this connection's region or is dead, and not before).

Sizes are bytes, times are seconds. Standard: a key is vLLM's `OffloadKey`, the block hash (32 bytes, chained) and the KV group (4 bytes).
"""

from __future__ import annotations

import msgspec

VERSION = 1
MAX_PACKET = 128 << 10
"""No message is larger; both sides cut their lists of keys so that they fit."""
KEYS_A_PACKET = 2000
"""Keys in one message at most: 2000 × 40 bytes stay below `MAX_PACKET`."""


class Hello(msgspec.Struct, tag="hello", frozen=True, kw_only=True):
    """From an engine, first of all; beside it travels the descriptor of its L2 region."""

    version: int
    engine: str
    """Name for people and for fair shares."""
    namespace: str
    """`namespace.digest` of all that decides about the bytes of a value."""
    told: dict[str, str] = {}
    """The fields behind the namespace, for people: model, dtype, layout and so on."""
    value_bytes: int
    slots: int


class Load(msgspec.Struct, tag="load", frozen=True, kw_only=True):
    """From an engine: copy these values into these slots. Answered by one `Done`."""

    job: int
    keys: list[bytes]
    slots: list[int]


class Save(msgspec.Struct, tag="save", frozen=True, kw_only=True):
    """From an engine: keep what is in these slots. Answered by one `Done`; the slots do not change until then."""

    job: int
    keys: list[bytes]
    slots: list[int]


class Touch(msgspec.Struct, tag="touch", frozen=True, kw_only=True):
    """From an engine: these were of use, though not loaded. No answer."""

    keys: list[bytes]


class Welcome(msgspec.Struct, tag="welcome", frozen=True, kw_only=True):
    """From the store: the engine may begin. Life lines travel beside it; all keys of its namespace follow in `Gained`."""

    version: int
    store: str


class Rejected(msgspec.Struct, tag="rejected", frozen=True, kw_only=True):
    """From the store: this engine cannot be served, and why; the connection ends."""

    reason: str


class LifeLines(msgspec.Struct, tag="life_lines", frozen=True, kw_only=True):
    """From the store: further processes may copy from now on; their life lines travel beside it."""


class Gained(msgspec.Struct, tag="gained", frozen=True, kw_only=True):
    """From the store: these keys can be loaded, whoever saved them."""

    keys: list[bytes]


class Lost(msgspec.Struct, tag="lost", frozen=True, kw_only=True):
    """From the store: these keys are gone (evicted, found broken, purged, their disk died)."""

    keys: list[bytes]


class Done(msgspec.Struct, tag="done", frozen=True, kw_only=True):
    """From the store: a job has ended, and nothing touches its slots any more."""

    job: int
    missing: list[int] = []
    """Positions in the job's `keys` that were not loaded or not kept."""
    seconds: float = 0.0
    """From taking the job up to its end, without its wait in the queue."""
    waited: float = 0.0
    """Its wait in the queue."""
    reason: str = ""
    """Why something is missing, for logs."""


FromEngine = Hello | Load | Save | Touch
FromStore = Welcome | Rejected | LifeLines | Gained | Lost | Done
