"""What holds now: one record a key, kept on disk by the NATS server, written by comparing with the state that was read.

Buckets of JetStream's key-value store, so that `nats kv get hr-services NAME` shows them; values are JSON.
Goes through the wire as all else does, so it is the same on the memory bus.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Generic, Self, TypeVar

import msgspec

from shared import logs
from shared.bus import Subscription
from shared.entry import Entry
from shared.errors import BusClosed, BusError, Conflict, NoHistory, Undecodable
from shared.jetstream import JetStream, Pages, Reply, no_history, wait
from shared.messages import ALL_MESSAGES, ROUTES, Delivery, Message, RecordChanged
from shared.quiet import Quiet
from shared.record_view import Reading, State, View
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
    key_of,
    keys_of,
    stream_name,
)
from shared.subjects import check_subject, fill, subject_of
from shared.typedbus import TypedBus

M = TypeVar("M", bound=Message)

READ_AGAIN_S = 30.0
"""Between two readings of a watched bucket, whatever hints came."""
RETRY_S = 1.0
BEHIND_TRIES = 3
BEHIND_S = 0.1
"""A server of a cluster may be a moment behind its leader: readings that show it are made again so often, after so long."""
MAX_HINTED = 64
"""Keys that are read one by one; where more were written, the bucket is read whole."""

_encode = msgspec.json.Encoder().encode
_acks = msgspec.json.Decoder(Ack)
_decoders: dict[type[Message], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind)
    for kind in ALL_MESSAGES
    if kind in ROUTES and ROUTES[kind].delivery is Delivery.RECORD
}
_subjects = {kind: subject_of(kind) for kind in _decoders}


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
        return (await self.state(kind, key)).entry

    async def state(self, kind: type[M], key: str) -> State[M]:
        """Return the newest state of a key, whatever it is. Raises `NoHistory`, `BusError`."""
        reply = await self._newest(kind, key)
        return State(0) if reply is None else self._state(kind, reply)

    async def list(self, kind: type[M]) -> dict[str, Entry[M]]:
        """Return all records of a type by key; those that cannot be read are skipped and counted. Raises `NoHistory`, `BusError`."""
        return (await self.read(kind)).entries

    async def read(self, kind: type[M]) -> Reading[M]:
        """Return a whole bucket, and which keys of it cannot be read. Raises `NoHistory`, `BusError`."""
        name = stream_name(bucket_of(kind))
        tries = BEHIND_TRIES
        while True:
            answer = await self._jetstream.api(INFO_SUBJECT, name, b"")
            if answer.state is None:
                raise no_history(name, answer.error)
            newest = await self._newest_of_all(kind, max(answer.state.first_seq, 1))
            seq = max((reply.seq for reply in newest.values()), default=0)
            tries -= 1
            if seq >= answer.state.last_seq or not tries:
                break
            await asyncio.sleep(BEHIND_S)
        states = {key: self._state(kind, reply) for key, reply in newest.items()}
        return Reading(
            {key: state.entry for key, state in states.items() if state.entry is not None},
            frozenset(key for key, state in states.items() if state.is_unreadable),
            max(seq, answer.state.last_seq),
        )

    async def _newest_of_all(self, kind: type[Message], first: int) -> dict[str, Reply]:
        """Return the newest state of each key.

        Read to the very end: a key that is written meanwhile is found there, and no longer where it was.
        """
        bucket = bucket_of(kind)
        left = range(first, sys.maxsize)
        pages = Pages(
            self._jetstream, stream_name(bucket), keys_of(bucket), left, newest_first=False
        )
        newest: dict[str, Reply] = {}
        while pages.are_left:
            for reply in await pages.read():
                newest[key_of(bucket, reply.headers.get(SUBJECT_HEADER, ""))] = reply
        return newest

    async def put(self, record: Message, *, expected: int | None = None) -> int:
        """Write a record where its key's newest state is `expected` (0: there is no record; None: whatever it is); return the new one.

        Raises `Conflict` where it is another, `UserError` for a key that cannot be one, `NoHistory`, and `BusError`: after `RequestTimeout`
        it may have been written or not, so read it again.
        """
        kind = type(record)
        subject = _subjects[kind](record)
        try:
            revision = await self._write(kind, subject, _encode(record), expected, {})
        except Conflict:
            if expected != 0:
                raise
            # What was deleted, or is no record, is a newest state too.
            state = await self.state(kind, key_of(bucket_of(kind), subject))
            if state.entry is not None or not state.revision:
                raise
            revision = await self._write(kind, subject, _encode(record), state.revision, {})
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

        Read whole each `READ_AGAIN_S` and whenever messages may have been lost; a key alone, at once, when somebody says that he wrote it.
        While it cannot be read the view keeps what it had, and its age grows. Raises `BusClosed`.
        """
        watch = _Watch(self, kind, on_change)
        self._bus.on_loss(lambda _: watch.view.look())
        hints = await self._bus.subscribe(RecordChanged, watch.on_hint, bucket=bucket_of(kind).name)
        group.create_task(watch.run(hints), name=f"watch {bucket_of(kind).name}")
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
        key = key_of(bucket, subject)
        if ack.error is not None:
            if ack.error.err_code == WRONG_SEQUENCE_CODE:
                raise Conflict(f"{key} of {bucket.name} was written meanwhile")
            raise NoHistory(f"cannot write to {bucket.name}: {ack.error.description}")
        with suppress(BusError):  # it is written; this is only a hint
            self._bus.publish(RecordChanged(bucket=bucket.name, key=key, revision=ack.seq))
        return ack.seq

    def _state(self, kind: type[M], reply: Reply) -> State[M]:
        if _is_deleted(reply):
            return State(reply.seq)
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
            return State(reply.seq, is_unreadable=True)
        return State(reply.seq, Entry(record, reply.seq))


class _Watch(Generic[M]):
    """One bucket being followed."""

    def __init__(
        self, records: Records, kind: type[M], on_change: Callable[[View[M]], None]
    ) -> None:
        self._records = records
        self._kind = kind
        self._on_change = on_change
        self._clock = asyncio.get_running_loop().time
        self._bucket = bucket_of(kind).name
        self._log = logs.get("records")
        self._is_reached = True
        self._hinted: dict[str, int] = {}
        """Keys that were written, and the state of each that was told of."""
        self.view: View[M] = View(self._clock)

    def on_hint(self, hint: RecordChanged) -> None:
        """Read a key again, unless what was written was read already."""
        known = self.view.entries.get(hint.key)
        if known is not None and known.revision >= hint.revision:
            return
        if len(self._hinted) >= MAX_HINTED:
            self.view.look()
            return
        self._hinted[hint.key] = max(hint.revision, self._hinted.get(hint.key, 0))
        self.view.wake.set()

    async def run(self, hints: Subscription) -> None:
        """Read, and wait for a reason to read again, until the bus is closed."""
        retry_s = RETRY_S
        while not self.view.is_over:
            self.view.wake.clear()
            try:
                await self._catch_up()
            except BusClosed:
                return
            except BusError as error:
                self.view.is_asked = True
                self._tell(reached=False, reason=str(error))
                await wait(self.view.wake, retry_s)
                retry_s = min(2 * retry_s, READ_AGAIN_S)
            else:
                retry_s = RETRY_S
                self._tell(reached=True, reason="")
                await wait(self.view.wake, READ_AGAIN_S - self.view.age_s)
        await hints.close()

    async def _catch_up(self) -> None:
        hinted, self._hinted = self._hinted, {}
        if self.view.is_asked or self.view.age_s >= READ_AGAIN_S:
            changed = await self._read()
        else:
            changed = [await self._read_key(key, at) for key, at in hinted.items()]
        if any(changed):
            try:
                self._on_change(self.view)
            except Exception as error:  # noqa: BLE001 - one bad record must not end the watch
                self._log.error("records_handler_failed", bucket=self._bucket, exc_info=error)

    async def _read(self) -> list[bool]:
        begun_s, self.view.is_asked = self._clock(), False
        reading = await self._records.read(self._kind)
        return [self.view.replace(reading, read_s=begun_s)]

    async def _read_key(self, key: str, revision: int) -> bool:
        state = await self._records.state(self._kind, key)
        if state.revision < revision:
            # A server that is behind, or another bucket by now.
            self.view.look()
            return False
        return self.view.update(key, state)

    def _tell(self, *, reached: bool, reason: str) -> None:
        if reached != self._is_reached:
            self._is_reached = reached
            if reached:
                self._log.info("records_reached", bucket=self._bucket)
            else:
                self._log.info("records_out_of_reach", bucket=self._bucket, reason=reason)


def _is_deleted(reply: Reply) -> bool:
    headers: Mapping[str, str] = reply.headers
    return headers.get(OPERATION_HEADER) in {DELETE, PURGE}
