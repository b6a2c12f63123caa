"""What JetStream is asked for a message whose route has a `Stream`: subjects of its API, requests, answers.

Pure. `shared.history` sends it, `shared.memstreams` answers it in memory, `shared.acl` gives each service its part of it.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from shared.messages import ROUTES, Bucket, Message, Stream
from shared.subjects import pattern

CREATE_SUBJECT = "$JS.API.STREAM.CREATE.{stream}"
UPDATE_SUBJECT = "$JS.API.STREAM.UPDATE.{stream}"
INFO_SUBJECT = "$JS.API.STREAM.INFO.{stream}"
GET_SUBJECT = "$JS.API.DIRECT.GET.{stream}"
OWNER_SUBJECTS = (CREATE_SUBJECT, UPDATE_SUBJECT)
READER_SUBJECTS = (INFO_SUBJECT, GET_SUBJECT)

SEQUENCE_HEADER = "Nats-Sequence"
SUBJECT_HEADER = "Nats-Subject"
PENDING_HEADER = "Nats-Num-Pending"
"""Of a message that is one of a batch; servers before 2.11 know no batches."""
PREVIOUS_HEADER = "Nats-Last-Sequence"
"""Sequence number of the message before this one in the batch; 0 for the first."""
END_STATUS = "204"
NOT_FOUND_STATUS = "404"

EXPECTED_HEADER = "Nats-Expected-Last-Subject-Sequence"
"""Of a write: it is done only where the newest state of the key is this one; 0: where there is none."""
OPERATION_HEADER = "KV-Operation"
"""Of a deleted key's newest state."""
DELETE = "DEL"
PURGE = "PURGE"

WRONG_SEQUENCE_CODE = 10071
"""JetStream's own number of `wrong last sequence`."""
FULL_CODE = 10077
"""JetStream's own number of a stream that is full and refuses what is new."""
NO_STREAM_CODE = 10059
"""JetStream's own number of `stream not found`."""

_NANOSECONDS = 1_000_000_000
_MIN_DUPLICATE_WINDOW_S = 0.1
"""The server's least; duplicates are told by a header that nobody here sends."""


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A stream as JetStream is told of it; times in nanoseconds."""

    name: str
    subjects: list[str]
    max_age: int
    max_bytes: int
    num_replicas: int = 1
    storage: str = "memory"
    retention: str = "limits"
    discard: str = "old"
    allow_direct: bool = True
    duplicate_window: int = int(_MIN_DUPLICATE_WINDOW_S * _NANOSECONDS)
    max_msgs_per_subject: int = -1
    allow_rollup_hdrs: bool = False
    deny_delete: bool = False


class StreamState(msgspec.Struct, frozen=True):
    """What a stream holds: sequence numbers of its ends; an empty one has the first after the last."""

    first_seq: int
    last_seq: int


class ApiError(msgspec.Struct, frozen=True):
    """Why JetStream did not do it."""

    description: str
    err_code: int = 0


class StreamAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to create, update and info: an error, or the state at a moment of the server's clock."""

    error: ApiError | None = None
    config: StreamConfig | None = None
    state: StreamState | None = None
    ts: datetime | None = None


class GetRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Asks for up to `batch` messages of a subject, beginning at a sequence number or, where that is 0, a moment."""

    batch: int = 0
    max_bytes: int = 0
    next_by_subj: str = ""
    last_by_subj: str = ""
    """Only the newest message of this subject; not a batch."""
    seq: int = 0
    start_time: datetime | None = None


class Ack(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to a message that a stream keeps, where it was sent as a request."""

    stream: str = ""
    seq: int = 0
    error: ApiError | None = None


def stream_of(kind: type[Message]) -> Stream:
    """Return the stream that keeps messages of a type. Raises `TypeError` where none does."""
    stream = ROUTES[kind].stream
    if stream is None:
        raise TypeError(f"{kind.__name__} is not kept by the server")
    return stream


def config_of(kind: type[Message], *, replicas: int = 1) -> StreamConfig:
    """Return the configuration of the stream that keeps messages of a type. Raises `TypeError` where none does."""
    stream = stream_of(kind)
    return StreamConfig(
        name=stream.name,
        subjects=[pattern(kind, {})],
        max_age=int(stream.max_age_s * _NANOSECONDS),
        max_bytes=stream.max_bytes,
        num_replicas=replicas,
    )


def bucket_of(kind: type[Message]) -> Bucket:
    """Return the bucket that keeps records of a type. Raises `TypeError` where none does."""
    bucket = ROUTES[kind].bucket
    if bucket is None:
        raise TypeError(f"{kind.__name__} is no record")
    return bucket


def stream_name(bucket: Bucket) -> str:
    """Return the name of the stream behind a bucket, as all clients of JetStream's key-value stores know it."""
    return f"KV_{bucket.name}"


def keys_of(bucket: Bucket) -> str:
    """Return the subjects of all keys that a bucket may hold, ours and others."""
    return f"$KV.{bucket.name}.>"


def key_of(bucket: Bucket, subject: str) -> str:
    """Return the key that a subject of a bucket is."""
    return subject.removeprefix(f"$KV.{bucket.name}.")


def bucket_config(bucket: Bucket, *, replicas: int = 1) -> StreamConfig:
    """Return the configuration of the stream behind a bucket: on disk, written in full or not at all, nothing deleted from its middle."""
    return StreamConfig(
        name=stream_name(bucket),
        subjects=[keys_of(bucket)],
        max_age=0,
        max_bytes=bucket.max_bytes,
        num_replicas=replicas,
        storage="file",
        discard="new",
        max_msgs_per_subject=bucket.history,
        allow_rollup_hdrs=True,
        deny_delete=True,
    )


def max_age_s(config: StreamConfig) -> float:
    """Return how long a stream keeps a message."""
    return float("inf") if config.max_age == 0 else config.max_age / _NANOSECONDS


def total_bytes() -> int:
    """Return what all streams of the contract may hold together."""
    return sum(route.stream.max_bytes for route in ROUTES.values() if route.stream)
