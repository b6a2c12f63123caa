"""The bytes of a black box: a header and four rings of records in a file of fixed size.

Each record carries its number and a checksum, and stands where its number says. A kill in the middle of a write spoils only the record that
is being written, which takes the place of its ring's oldest. `decode` returns what is whole, whatever the bytes are.
Times are wall time, so that they mean something in another process.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol, TypeVar
from zlib import crc32

import msgspec

from shared.ids import EngineId, RequestId, ServiceName

MAGIC = b"HRBOX01\n"
"""Its number is the version of this layout."""


class Buffer(Protocol):
    """Bytes of a fixed length that can be replaced in place, such as a memory map."""

    def __setitem__(self, key: slice, value: bytes, /) -> None:
        """Replace bytes by as many."""
        ...


class Ring(msgspec.Struct, frozen=True):
    """A place for the newest `slots` records of one kind."""

    offset: int
    slots: int
    slot_bytes: int

    @property
    def end(self) -> int:
        """First byte behind it."""
        return self.offset + self.slots * self.slot_bytes

    @property
    def room_bytes(self) -> int:
        """The longest payload."""
        return self.slot_bytes - _FRAME.size


_FRAME = struct.Struct("<IQI")
"""CRC-32 of all that follows, number from 1, length of the payload."""
_HEAD = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_CRC_BYTES = _CRC.size

_STEP = struct.Struct("<QdIIIIIII32s")
_STEP_FRAME = struct.Struct("<QIQdIIIIIII32s")
_MODE_BYTES = 32
_WHAT_CHARS, _WHY_CHARS = 20, 200

HEADER = Ring(len(MAGIC), 1, 4096 - len(MAGIC))
STEPS = Ring(HEADER.end, 1024, 96)
SECONDS = Ring(STEPS.end, 240, 1536)
"""Four minutes; room for eight processes and eight devices."""
TABLES = Ring(SECONDS.end, 2, 65_536)
NOTES = Ring(TABLES.end, 16, 1024)
SIZE_BYTES = NOTES.end
"""About 600 KiB."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Whose box it is."""

    engine: EngineId
    service: ServiceName
    name: str = ""
    backend: str = ""
    version: str = ""
    host: str = ""
    pid: int = 0
    began_unix_s: float = 0.0


class Step(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One step of the backend."""

    number: int
    unix_s: float
    """When it was decided who is in it."""
    us: int
    """From there to when its tokens were there."""
    decodes: int = 0
    """Choices in it that had their first token before."""
    prompts: int = 0
    """Choices whose prompt it computed, or a part of it."""
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0
    free_blocks: int = 0
    mode: str = ""
    """See `Spent.mode`; cut to 32 bytes."""


class ProcessMemory(msgspec.Struct, frozen=True):
    """A process of the engine's tree."""

    pid: int
    name: str
    rss_bytes: int


class DeviceMemory(msgspec.Struct, frozen=True):
    """An accelerator as its driver sees it, other processes on it included."""

    used_bytes: int
    total_bytes: int


class Second(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How things stand, once a second."""

    unix_s: float
    state: str = ""
    step: int = 0
    step_age_s: float = 0.0
    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    processes: list[ProcessMemory] = []
    """The front first, then those below it."""
    devices: list[DeviceMemory] = []
    group_bytes: int = 0
    """Memory of the cgroup, and its limit; 0: not known, no limit."""
    group_limit_bytes: int = 0
    oom_kills: int = -1
    """Processes that the kernel has killed for lack of memory, in this cgroup or, where it does not tell, on this host; -1: not known."""

    @property
    def rss_bytes(self) -> int:
        """Resident memory of all its processes; what they share counts in each."""
        return sum(process.rss_bytes for process in self.processes)


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request under way."""

    request: RequestId
    stage: str
    prompt_tokens: int = 0
    tokens: int = 0
    """Generated so far, over all choices."""
    kv_blocks: int = 0


class Table(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The requests under way, once a second."""

    unix_s: float
    requests: list[Request] = []
    left_out: int = 0
    """Further ones that found no room."""


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened, such as `failed`, and why."""

    unix_s: float
    what: str
    why: str = ""


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """What a box says, the oldest first."""

    identity: Identity | None = None
    """None: it is no box, one of another version, or its engine was killed before it wrote anything."""
    steps: list[Step] = []
    seconds: list[Second] = []
    table: Table | None = None
    notes: list[Note] = []


class Writer:
    """Writes the records of one engine's life. Each call replaces a few hundred bytes at most, a table aside."""

    def __init__(self, buffer: Buffer, identity: Identity) -> None:
        """Begin a box in a buffer of `SIZE_BYTES` zeros."""
        self._buffer = buffer
        self._steps = self._seconds = self._tables = self._notes = 0
        self._mode, self._mode_bytes = "", b""
        self._put(HEADER, 1, msgspec.msgpack.encode(identity))
        buffer[0 : len(MAGIC)] = MAGIC

    def step(self, step: Step) -> None:
        """Keep a step: a microsecond or two. Figures that cannot be are left out with it: a gap is better than the engine's end."""
        self._steps += 1
        if step.mode != self._mode:
            self._mode, self._mode_bytes = step.mode, step.mode.encode()[:_MODE_BYTES]
        try:
            frame = _STEP_FRAME.pack(
                self._steps,
                _STEP.size,
                step.number,
                step.unix_s,
                step.us,
                step.decodes,
                step.prompts,
                step.prefill_tokens,
                step.recomputed_tokens,
                step.preemptions,
                step.free_blocks,
                self._mode_bytes,
            )
        except struct.error:
            return
        at = STEPS.offset + self._steps % STEPS.slots * STEPS.slot_bytes
        self._buffer[at : at + _CRC_BYTES + len(frame)] = _CRC.pack(crc32(frame)) + frame

    def second(self, second: Second) -> None:
        """Keep how things stand."""
        self._seconds += 1
        self._put(SECONDS, self._seconds, msgspec.msgpack.encode(second))

    def table(self, requests: Sequence[Request], *, unix_s: float) -> None:
        """Keep the requests under way: the first ones where not all fit."""
        self._tables += 1
        kept = list(requests)
        while True:
            table = Table(unix_s=unix_s, requests=kept, left_out=len(requests) - len(kept))
            data = msgspec.msgpack.encode(table)
            if len(data) <= TABLES.room_bytes:
                break
            kept = kept[: len(kept) // 2]
        self._put(TABLES, self._tables, data)

    def note(self, what: str, why: str = "", *, unix_s: float) -> None:
        """Keep something that happened; long words are cut."""
        self._notes += 1
        note = Note(unix_s=unix_s, what=what[:_WHAT_CHARS], why=why[:_WHY_CHARS])
        self._put(NOTES, self._notes, msgspec.msgpack.encode(note))

    def _put(self, ring: Ring, number: int, payload: bytes) -> None:
        """Write a record. One without room is left out, as above."""
        if len(payload) > ring.room_bytes:
            return
        frame = _HEAD.pack(number, len(payload)) + payload
        at = ring.offset + number % ring.slots * ring.slot_bytes
        self._buffer[at : at + _CRC_BYTES + len(frame)] = _CRC.pack(crc32(frame)) + frame


def decode(data: bytes) -> Box:
    """Return what is whole in these bytes. Raises nothing, whatever they are."""
    if data[: len(MAGIC)] != MAGIC:
        return Box()
    tables = _values(data, TABLES, Table)
    return Box(
        identity=next(iter(_values(data, HEADER, Identity)), None),
        steps=[_step(payload) for payload in _payloads(data, STEPS) if len(payload) == _STEP.size],
        seconds=_values(data, SECONDS, Second),
        table=tables[-1] if tables else None,
        notes=_values(data, NOTES, Note),
    )


def _payloads(data: bytes, ring: Ring) -> list[bytes]:
    """Return the payloads of a ring's whole records, by their numbers."""
    found: dict[int, bytes] = {}
    for slot in range(ring.slots):
        at = ring.offset + slot * ring.slot_bytes
        if at + _FRAME.size > len(data):
            break
        crc, number, size = _FRAME.unpack_from(data, at)
        end = at + _FRAME.size + size
        if not number or size > ring.room_bytes or end > len(data):
            continue
        if crc32(data[at + _CRC_BYTES : end]) == crc:
            found[number] = data[at + _FRAME.size : end]
    return [found[number] for number in sorted(found)]


T = TypeVar("T")


def _values(data: bytes, ring: Ring, kind: type[T]) -> list[T]:
    values = []
    for payload in _payloads(data, ring):
        # RecursionError, UnicodeDecodeError (a ValueError): a checksum can be right by chance.
        with suppress(msgspec.DecodeError, ValueError, RecursionError):
            values.append(msgspec.msgpack.decode(payload, type=kind))
    return values


def _step(payload: bytes) -> Step:
    *figures, mode = _STEP.unpack(payload)
    number, unix_s, us, decodes, prompts, prefill, recomputed, preemptions, free_blocks = figures
    return Step(
        number=number,
        unix_s=unix_s,
        us=us,
        decodes=decodes,
        prompts=prompts,
        prefill_tokens=prefill,
        recomputed_tokens=recomputed,
        preemptions=preemptions,
        free_blocks=free_blocks,
        mode=mode.rstrip(b"\0").decode(errors="replace"),
    )
