"""What holds now: one record a key, kept on disk by the NATS server, written by comparing with the state that was read.

Buckets of JetStream's key-value store, so that `nats kv get hr-services NAME` shows them; values are JSON.
Goes through the wire as all else does, so it is the same on the memory bus.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Generic, Self, TypeVar

import msgspec

from shared import logs
from shared.entry import Entry
from shared.errors import BusClosed, BusError, Conflict, NoHistory, Undecodable
from shared.jetstream import JetStream, Pages, Reply, no_history, wait
from shared.messages import ALL_MESSAGES, ROUTES, Delivery, Message, RecordChanged
from shared.quiet import Quiet
from shared.streams import (
    DELETE,
    EXPECTED_HEADER,
    GET_SUBJECT,
    INFO_SUBJECT,
    NOT_FOUND_STATUS,
    OPERATION_HEADER,
    PURGE,
    SUBJECT_HEADER,
    WRONG_SEQUENCE_CODE,
    Ack,
    GetRequest,
    bucket_config,
    bucket_of,
    stream_name,
)
from shared.subjects import check_subject, fill, subject_of
from shared.typedbus import TypedBus

M = TypeVar("M", bound=Message)

READ_AGAIN_S = 30.0
"""Between two readings of a watched bucket, whatever hints came."""
RETRY_S = 1.0

_encode = msgspec.json.Encoder().encode
_acks = msgspec.json.Decoder(Ack)
_decoders: dict[type[Message], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind)
    for kind in ALL_MESSAGES
    if kind in ROUTES and ROUTES[kind].delivery is Delivery.RECORD
}
_subjects = {kind: subject_of(kind) for kind in _decoders}


class Reading(msgspec.Struct, Generic[M], frozen=True):
    """A whole bucket, as it was read once."""

    entries: dict[str, Entry[M]]
    unreadable: frozenset[str]
    """Keys that hold something which is no such record."""


class View(Generic[M]):
    """A watched bucket, as it was last read."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.entries: dict[str, Entry[M]] = {}
        """By key."""
        self.unreadable: frozenset[str] = frozenset()
        """Keys that hold something which is no such record."""
        self.wake = asyncio.Event()
        """Set to have it read again soon."""
        self.is_over = False
        self._clock = clock
        self._read_s: float | None = None

    def stop(self) -> None:
        """Follow the bucket no longer; it also ends with the bus and with the group that it runs in."""
        self.is_over = True
        self.wake.set()

    @property
    def is_read(self) -> bool:
        """Whether it was read at all."""
        return self._read_s is not None

    @property
    def age_s(self) -> float:
        """How long ago the whole bucket was last read; infinite before the first time."""
        return float("inf") if self._read_s is None else self._clock() - self._read_s

    def replace(self, reading: Reading[M], *, read_s: float) -> bool:
        """Take a whole reading that began at `read_s`; return whether anything changed."""
        first, self._read_s = not self.is_read, read_s
        changed = (reading.entries, reading.unreadable) != (self.entries, self.unreadable)
        self.entries, self.unreadable = reading.entries, reading.unreadable
        return changed or first


class Records:
    """Reads, writes and watches records over one bus. Make it with `open`; it ends with the bus."""

    def __init__(self, bus: TypedBus, jetstream: JetStream) -> None:
        self._bus = bus
        self._jetstream = jetstream
        self._log = logs.get("records")
        self._quiet = Quiet(asyncio.get_running_loop().time)

    @classmethod
    async def open(cls, bus: TypedBus) -> Self:
        """Return the records that this bus reaches; whether their buckets are there is not asked yet. Raises `BusClosed`."""
        return cls(bus, await JetStream.open(bus, log="records"))

    async def ensure(self, *kinds: type[Message], replicas: int = 1) -> None:
        """Create the buckets of these records; what they hold stays. Raises `NoHistory`, `BusError`."""
        for kind in kinds:
            await self._jetstream.ensure(bucket_config(bucket_of(kind), replicas=replicas))

    async def keep(self, *kinds: type[Message], replicas: int = 1) -> None:
        """Keep their buckets there, until the bus is closed; see `JetStream.keep`."""
        configs = (bucket_config(bucket_of(kind), replicas=replicas) for kind in kinds)
        await self._jetstream.keep(*configs)

    async def get(self, kind: type[M], key: str) -> Entry[M] | None:
        """Return the record of a key; none where there is none or it cannot be read. Raises `NoHistory`, `BusError`."""
        reply = await self._newest(kind, key)
        return None if reply is None else self._entry(kind, reply)

    async def list(self, kind: type[M]) -> dict[str, Entry[M]]:
        """Return all records of a type by key; those that cannot be read are skipped and counted. Raises `NoHistory`, `BusError`."""
        return (await self.read(kind)).entries

    async def read(self, kind: type[M]) -> Reading[M]:
        """Return a whole bucket, and which keys of it cannot be read. Raises `NoHistory`, `BusError`."""
        name = stream_name(bucket_of(kind))
        answer = await self._jetstream.api(INFO_SUBJECT, name, b"")
        if answer.state is None:
            raise no_history(name, answer.error)
        left = range(max(answer.state.first_seq, 1), answer.state.last_seq + 1)
        pages = Pages(
            self._jetstream, name, fill(ROUTES[kind].subject, {}), left, newest_first=False
        )
        newest: dict[str, Reply] = {}
        while pages.are_left:
            for reply in await pages.read():
                newest[_key_of(reply)] = reply
        found = {key: self._entry(kind, reply) for key, reply in newest.items()}
        return Reading(
            {key: entry for key, entry in found.items() if entry is not None},
            frozenset(k for k, one in found.items() if one is None and not _is_deleted(newest[k])),
        )

    async def put(self, record: Message, *, expected: int | None = None) -> int:
        """Write a record where its key's newest state is `expected` (0: there is none; None: whatever it is); return the new one.

        Raises `Conflict` where it is another, `UserError` for a key that cannot be one, `NoHistory`, and `BusError`: after `RequestTimeout`
        it may have been written or not, so read it again.
        """
        kind = type(record)
        subject = _subjects[kind](record)
        try:
            revision = await self._write(kind, subject, _encode(record), expected, {})
        except Conflict:
            # A deleted key has a newest state too: the note that it was deleted.
            gone = await self._newest(kind, subject.rpartition(".")[2]) if expected == 0 else None
            if gone is None or not _is_deleted(gone):
                raise
            revision = await self._write(kind, subject, _encode(record), gone.seq, {})
        return revision

    async def delete(self, kind: type[Message], key: str, *, expected: int | None = None) -> None:
        """Delete a key; where it is not there, nothing happens. Raises as `put`."""
        newest = await self._newest(kind, key)
        if newest is None or _is_deleted(newest):
            return
        subject = fill(ROUTES[kind].subject, {str(ROUTES[kind].key): key})
        await self._write(kind, subject, b"", expected, {OPERATION_HEADER: DELETE})

    async def watch(
        self, kind: type[M], on_change: Callable[[View[M]], None], *, group: asyncio.TaskGroup
    ) -> View[M]:
        """Follow a bucket as long as the bus is open: `on_change` is called on the loop after its first reading and each change.

        Read whole each `READ_AGAIN_S` and whenever messages may have been lost, and at once when somebody says that he wrote.
        While it cannot be read the view keeps what it had, and its age grows. Raises `BusClosed`.
        """
        watch = _Watch(self, kind, on_change)
        self._bus.on_loss(lambda _: watch.look())
        await self._bus.subscribe(RecordChanged, watch.on_hint, bucket=bucket_of(kind).name)
        group.create_task(watch.run(), name=f"watch {bucket_of(kind).name}")
        return watch.view

    async def _newest(self, kind: type[Message], key: str) -> Reply | None:
        """Return the newest state of a key, deleted or not."""
        name = stream_name(bucket_of(kind))
        subject = fill(ROUTES[kind].subject, {str(ROUTES[kind].key): key})
        body = _encode(GetRequest(last_by_subj=subject))
        reply = await self._jetstream.ask(GET_SUBJECT.format(stream=name), body)
        if reply.status == NOT_FOUND_STATUS:
            return None
        if reply.status:
            raise NoHistory(f"cannot read {name}: there is no such bucket, or no JetStream")
        return reply

    async def _write(
        self,
        kind: type[Message],
        subject: str,
        payload: bytes,
        expected: int | None,
        headers: dict[str, str],
    ) -> int:
        bucket = bucket_of(kind)
        if expected is not None:
            headers = {**headers, EXPECTED_HEADER: str(expected)}
        reply = await self._jetstream.ask(subject, payload, headers=headers or None)
        if reply.status:
            raise NoHistory(
                f"cannot write to {bucket.name}: there is no such bucket, or no JetStream"
            )
        try:
            ack = _acks.decode(reply.payload)
        except msgspec.DecodeError as error:
            raise NoHistory(f"JetStream answers strangely: {error}") from error
        key = subject.rpartition(".")[2]
        if ack.error is not None:
            if ack.error.err_code == WRONG_SEQUENCE_CODE:
                raise Conflict(f"{key} of {bucket.name} was written meanwhile")
            raise NoHistory(f"cannot write to {bucket.name}: {ack.error.description}")
        self._bus.publish(RecordChanged(bucket=bucket.name, key=key, revision=ack.seq))
        return ack.seq

    def _entry(self, kind: type[M], reply: Reply) -> Entry[M] | None:
        """Return a state as a record; none where the key was deleted or holds something else."""
        if _is_deleted(reply):
            return None
        subject = reply.headers.get(SUBJECT_HEADER, "")
        try:
            record = _decoders[kind].decode(reply.payload)
            check_subject(record, subject)
        except (msgspec.MsgspecError, Undecodable, ValueError, RecursionError) as error:
            self._bus.counts.undecodable += 1
            if times := self._quiet.due(subject):
                self._log.warning(
                    "record_unreadable", subject=subject, reason=str(error), times=times
                )
            return None
        return Entry(record, reply.seq)


class _Watch(Generic[M]):
    """One bucket being followed."""

    def __init__(
        self, records: Records, kind: type[M], on_change: Callable[[View[M]], None]
    ) -> None:
        self._records = records
        self._kind = kind
        self._on_change = on_change
        self._clock = asyncio.get_running_loop().time
        self._log = logs.get("records")
        self._is_reached = True
        self.view: View[M] = View(self._clock)

    def on_hint(self, hint: RecordChanged) -> None:
        """Read again, unless what was written was read already."""
        known = self.view.entries.get(hint.key)
        if known is None or known.revision < hint.revision:
            self.look()

    def look(self) -> None:
        """Read the whole bucket soon."""
        self.view.wake.set()

    async def run(self) -> None:
        """Read, and wait for a reason to read again, until the bus is closed."""
        retry_s = RETRY_S
        while not self.view.is_over:
            self.view.wake.clear()
            try:
                await self._read()
            except BusClosed:
                return
            except BusError as error:
                self._tell(reached=False, reason=str(error))
                await wait(self.view.wake, retry_s)
                retry_s = min(2 * retry_s, READ_AGAIN_S)
            else:
                retry_s = RETRY_S
                self._tell(reached=True, reason="")
                await wait(self.view.wake, READ_AGAIN_S)

    async def _read(self) -> None:
        begun_s = self._clock()
        if self.view.replace(await self._records.read(self._kind), read_s=begun_s):
            self._on_change(self.view)

    def _tell(self, *, reached: bool, reason: str) -> None:
        if reached != self._is_reached:
            self._is_reached = reached
            bucket = bucket_of(self._kind).name
            if reached:
                self._log.info("records_reached", bucket=bucket)
            else:
                self._log.info("records_out_of_reach", bucket=bucket, reason=reason)


def _key_of(reply: Reply) -> str:
    return reply.headers.get(SUBJECT_HEADER, "").rpartition(".")[2]


def _is_deleted(reply: Reply) -> bool:
    headers: Mapping[str, str] = reply.headers
    return headers.get(OPERATION_HEADER) in {DELETE, PURGE}
