"""What JetStream does for `shared.history` and `shared.records`, inside the memory hub: streams bounded by age and bytes, on loop time.

Answers what `shared.streams` asks for and nothing else of JetStream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple

import msgspec

from shared.streams import (
    CREATE_SUBJECT,
    END_STATUS,
    EXPECTED_HEADER,
    FULL_CODE,
    GET_SUBJECT,
    INFO_SUBJECT,
    NO_STREAM_CODE,
    NOT_FOUND_STATUS,
    PENDING_HEADER,
    PREVIOUS_HEADER,
    SEQUENCE_HEADER,
    SUBJECT_HEADER,
    UPDATE_SUBJECT,
    WRONG_SEQUENCE_CODE,
    Ack,
    ApiError,
    GetRequest,
    StreamAnswer,
    StreamConfig,
    StreamState,
    max_age_s,
)
from shared.subjects import matches
from shared.wire import STATUS_HEADER

MESSAGE_BYTES = 16
"""What the server counts for a message beside its subject and payload."""

Answer = tuple[Mapping[str, str] | None, bytes]

_encode = msgspec.json.Encoder().encode
_config = msgspec.json.Decoder(StreamConfig).decode
_get = msgspec.json.Decoder(GetRequest).decode


class _Kept(NamedTuple):
    seq: int
    at_s: float
    subject: str
    payload: bytes
    headers: Mapping[str, str]

    @property
    def size(self) -> int:
        return len(self.subject) + len(self.payload) + MESSAGE_BYTES


class _Stream:
    """One stream: the newest messages of its subjects."""

    def __init__(self, config: StreamConfig) -> None:
        self.config = config
        self._kept: deque[_Kept] = deque()
        self._bytes = 0
        self._last_seq = 0

    def takes(self, subject: str) -> bool:
        parts = subject.split(".")
        return any(matches(pattern.split("."), parts) for pattern in self.config.subjects)

    def add(self, subject: str, payload: bytes, headers: Mapping[str, str], *, now: float) -> Ack:
        """Keep a message, or say why not."""
        expected = headers.get(EXPECTED_HEADER)
        own = [kept for kept in self._kept if kept.subject == subject]
        last = own[-1].seq if own else 0
        if expected is not None and int(expected) != last:
            wrong = ApiError(f"wrong last sequence: {last}", WRONG_SEQUENCE_CODE)
            return Ack(stream=self.config.name, error=wrong)
        kept = _Kept(self._last_seq + 1, now, subject, payload, headers)
        leaving = own[:1] if 0 < self.config.max_msgs_per_subject <= len(own) else []
        grown = self._bytes + kept.size - sum(one.size for one in leaving)
        if self.config.discard == "new" and grown > self.config.max_bytes:
            full = ApiError("maximum bytes exceeded", FULL_CODE)
            return Ack(stream=self.config.name, error=full)
        self._last_seq = kept.seq
        self._kept.append(kept)
        for one in leaving:
            self._kept.remove(one)
        self._bytes = grown
        self.kept(now)
        return Ack(stream=self.config.name, seq=kept.seq)

    def kept(self, now: float) -> deque[_Kept]:
        """Drop what is too old or too much; return what is left."""
        oldest_s = now - max_age_s(self.config)
        while self._kept and (self._kept[0].at_s < oldest_s or self._bytes > self.config.max_bytes):
            self._bytes -= self._kept.popleft().size
        return self._kept

    def state(self, now: float) -> StreamState:
        kept = self.kept(now)
        return StreamState(kept[0].seq if kept else self._last_seq + 1, self._last_seq)


class MemoryStreams:
    """All streams of a hub."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}
        self._calls: dict[str, Callable[[str, bytes], list[Answer]]] = {
            CREATE_SUBJECT: self._create,
            UPDATE_SUBJECT: self._update,
            INFO_SUBJECT: self._info,
            GET_SUBJECT: self._messages,
        }

    def forget(self) -> None:
        """Lose all streams, as a server does that restarts."""
        self._streams.clear()

    def publish(
        self, subject: str, payload: bytes, headers: Mapping[str, str] | None
    ) -> list[Answer]:
        """Keep a message in the streams that take its subject; return their acknowledgements."""
        return [
            (None, _encode(stream.add(subject, payload, headers or {}, now=_now())))
            for stream in self._streams.values()
            if stream.takes(subject)
        ]

    def answer(self, subject: str, body: bytes) -> list[Answer]:
        """Return the replies to a request; none where it is not one that is answered."""
        verb, _, name = subject.rpartition(".")
        call = self._calls.get(f"{verb}.{{stream}}")
        return call(name, body) if call is not None else []

    def _create(self, name: str, body: bytes) -> list[Answer]:
        return self._configure(name, _config(body))

    def _update(self, name: str, body: bytes) -> list[Answer]:
        if name not in self._streams:
            return _no_stream()
        return self._configure(name, _config(body))

    def _configure(self, name: str, config: StreamConfig) -> list[Answer]:
        self._streams.setdefault(name, _Stream(config)).config = config
        return self._info(name, b"")

    def _info(self, name: str, _: bytes) -> list[Answer]:
        stream = self._streams.get(name)
        if stream is None:
            return _no_stream()
        state = stream.state(_now())
        answer = StreamAnswer(config=stream.config, state=state, ts=_moment(_now()))
        return [(None, _encode(answer))]

    def _messages(self, name: str, body: bytes) -> list[Answer]:
        stream = self._streams.get(name)
        if stream is None:
            return []
        request = _get(body)
        if request.last_by_subj:
            return _last(stream.kept(_now()), request.last_by_subj)
        wanted = request.next_by_subj.split(".")
        begin_s = request.start_time.timestamp() if request.start_time else 0.0
        found = [
            kept
            for kept in stream.kept(_now())
            if kept.seq >= request.seq
            and kept.at_s >= begin_s
            and matches(wanted, kept.subject.split("."))
        ]
        if not found:
            return [({STATUS_HEADER: NOT_FOUND_STATUS}, b"")]
        return _batch(found, request)


def _last(found: Iterable[_Kept], subject: str) -> list[Answer]:
    """Return the newest message of a subject."""
    own = [kept for kept in found if kept.subject == subject]
    if not own:
        return [({STATUS_HEADER: NOT_FOUND_STATUS}, b"")]
    kept = own[-1]
    place = {SEQUENCE_HEADER: str(kept.seq), SUBJECT_HEADER: subject}
    return [({**kept.headers, **place}, kept.payload)]


def _batch(found: list[_Kept], request: GetRequest) -> list[Answer]:
    """Return the beginning of what was found, and the end of the batch. The bound in bytes guards a network, which is not here."""
    answers: list[Answer] = []
    previous = 0
    for kept in islice(found, request.batch):
        headers = {
            **kept.headers,
            SEQUENCE_HEADER: str(kept.seq),
            SUBJECT_HEADER: kept.subject,
            PENDING_HEADER: str(len(found) - len(answers) - 1),
            PREVIOUS_HEADER: str(previous),
        }
        answers.append((headers, kept.payload))
        previous = kept.seq
    pending = str(len(found) - len(answers))
    end = {STATUS_HEADER: END_STATUS, PENDING_HEADER: pending, PREVIOUS_HEADER: str(previous)}
    return [*answers, (end, b"")]


def _no_stream() -> list[Answer]:
    error = ApiError("stream not found", NO_STREAM_CODE)
    return [(None, _encode(StreamAnswer(error=error)))]


def _now() -> float:
    return asyncio.get_running_loop().time()


def _moment(now: float) -> datetime:
    return datetime.fromtimestamp(now, UTC)
