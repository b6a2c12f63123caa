"""What the store and a mirror's process say to each other: one message a packet, as `shared.kv.seqpacket` carries it. Pure.

Orders are carried out in any order, except that writes, deletes and notes of one mirror keep theirs.
A mirror that fails says `Failed` and ends: there is no half-working one.
"""

from __future__ import annotations

import struct

import msgspec

from services.kvstore.lifecycle import Trouble

ROW = struct.Struct("<Qdd")
"""Generation, last use, use before: what the index database keeps of a value."""
ROWS_A_PACKET = 1500


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """What the store decides about a mirror's process."""

    folder: str
    parent: int
    budget_bytes: int
    empty: bool = False
    read_only: bool = False
    check: bool = False
    """Look the files through even if nothing says that they need it: the last process crashed on them."""


class Attach(msgspec.Struct, tag="attach", frozen=True, kw_only=True):
    """To a mirror: copy from and to this region from now on; its descriptor and a life line's write end travel beside it."""

    region: int


class Detach(msgspec.Struct, tag="detach", frozen=True, kw_only=True):
    """To a mirror: let go of the region when nothing runs on it any more, and end the life line."""

    region: int


class Value(msgspec.Struct, array_like=True, frozen=True):
    """A value and where in the region its bytes are."""

    key: bytes
    generation: int
    offset: int


class Read(msgspec.Struct, tag="read", frozen=True, kw_only=True):
    """To a mirror: copy these to the region. Answered by `Ended`."""

    task: int
    space: str
    value_bytes: int
    region: int
    values: list[Value]


class Write(msgspec.Struct, tag="write", frozen=True, kw_only=True):
    """To a mirror: keep these, after these keys of the same namespace are deleted. Answered by `Ended`."""

    task: int
    space: str
    value_bytes: int
    region: int
    values: list[Value]
    now: float
    drop: list[bytes] = []
    told: dict[str, str] = {}
    """The fields behind the namespace, for people who look at the folder."""


class Delete(msgspec.Struct, tag="delete", frozen=True, kw_only=True):
    """To a mirror: delete these. No answer."""

    space: str
    keys: list[bytes]


class Forget(msgspec.Struct, tag="forget", frozen=True, kw_only=True):
    """To a mirror: delete the whole namespace, files and all. No answer."""

    space: str


class Note(msgspec.Struct, tag="note", frozen=True, kw_only=True):
    """To a mirror: these were used. No answer."""

    space: str
    keys: list[bytes]
    rows: bytes
    """A `ROW` for each."""


class Check(msgspec.Struct, tag="check", frozen=True, kw_only=True):
    """To a mirror: read and verify these, copy nothing. Answered by `Ended`."""

    task: int
    space: str
    value_bytes: int
    values: list[Value]


class Compact(msgspec.Struct, tag="compact", frozen=True, kw_only=True):
    """To a mirror: give the disk back what this namespace's file holds in vain, if there is room for a copy. Answered by `Ended`."""

    task: int
    space: str


class Ping(msgspec.Struct, tag="ping", frozen=True, kw_only=True):
    """To a mirror: answer at once."""

    task: int


class Stop(msgspec.Struct, tag="stop", frozen=True, kw_only=True):
    """To a mirror: finish what was written, sync, end."""


class Opened(msgspec.Struct, tag="opened", frozen=True, kw_only=True):
    """From a mirror: all that it has was told by `Listed`; it can serve."""

    checked: bool
    """Whether the files had to be looked through, since the machine went down without a word."""


class Listed(msgspec.Struct, tag="listed", frozen=True, kw_only=True):
    """From a mirror: part of what it has."""

    space: str
    value_bytes: int
    keys: list[bytes]
    rows: bytes
    told: dict[str, str] = {}


class Ended(msgspec.Struct, tag="ended", frozen=True, kw_only=True):
    """From a mirror: a task has ended."""

    task: int
    missing: list[int] = []
    """Positions of values that are not there, or were not written."""
    bad: list[int] = []
    """Positions of values that did not check out; they have been deleted."""
    refused: list[int] = []
    """Positions of values that the region did not take."""
    seconds: float = 0.0


class Sizes(msgspec.Struct, tag="sizes", frozen=True, kw_only=True):
    """From a mirror, once a second: what its files take."""

    file_bytes: dict[str, int]
    free_bytes: int
    """What the disk has left."""


class Failed(msgspec.Struct, tag="failed", frozen=True, kw_only=True):
    """From a mirror: its last word, and why."""

    trouble: Trouble
    reason: str


ToMirror = Attach | Detach | Read | Write | Delete | Forget | Note | Check | Compact | Ping | Stop
FromMirror = Opened | Listed | Ended | Sizes | Failed
