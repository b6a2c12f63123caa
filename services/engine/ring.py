"""What an engine keeps of its deltas, so that a gateway can ask again for what the bus lost.

Deltas are kept encoded: a token takes about 25 bytes instead of 300, the bounds are exact,
and the garbage collector has nothing to walk. What was evicted is answered as gone, never guessed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from itertools import pairwise

import msgspec
from typing_extensions import override

from services.engine.settings import RingSettings
from shared.messages import Delta

_encode_into = msgspec.msgpack.Encoder().encode_into
_decode = msgspec.msgpack.Decoder(Delta).decode


class StreamRing:
    """The newest deltas of one stream, numbers without a hole."""

    __slots__ = ("_starts", "buffer", "first_seq")

    def __init__(self) -> None:
        self.buffer = bytearray()
        """Read by the store; written here alone."""
        self._starts = array("I")
        self.first_seq = 0
        """Number of the oldest delta that is kept."""

    @override
    def __repr__(self) -> str:
        return f"<StreamRing {self.first_seq}..{self.next_seq} {self.size} bytes>"

    @property
    def size(self) -> int:
        """Bytes kept."""
        return len(self.buffer)

    @property
    def next_seq(self) -> int:
        """Number of the next delta to come."""
        return self.first_seq + len(self._starts)

    def append(self, delta: Delta) -> int:
        """Keep the next delta; return its size in bytes."""
        buffer = self.buffer
        start = len(buffer)
        _encode_into(delta, buffer, start)
        self._starts.append(start)
        return len(buffer) - start

    def drop_older_half(self) -> int:
        """Drop the oldest deltas down to half of the bytes, at least one; return the bytes freed."""
        if not self._starts:
            return 0
        count = bisect_right(self._starts, len(self.buffer) // 2)
        freed = self._starts[count] if count < len(self._starts) else len(self.buffer)
        del self.buffer[:freed]
        self._starts = array("I", [start - freed for start in self._starts[count:]])
        self.first_seq += count
        return freed

    def since(self, seq: int, *, max_bytes: int) -> list[Delta] | None:
        """Return the deltas from number `seq` on, as many as fit but at least one; none where they are gone."""
        if seq < self.first_seq:
            return None
        deltas: list[Delta] = []
        taken = 0
        view = memoryview(self.buffer)
        starts = [*self._starts[seq - self.first_seq :], len(self.buffer)]
        for start, end in pairwise(starts):
            taken += end - start
            if deltas and taken > max_bytes:
                break
            deltas.append(_decode(view[start:end]))
        return deltas


class RingStore:
    """The rings of all streams within the bounds: finished ones go first, the oldest of them first."""

    def __init__(self, settings: RingSettings) -> None:
        self._stream_bytes = settings.stream_bytes
        self._total_bytes = settings.total_bytes
        self._finished_s = settings.finished_s
        self._finished: dict[str, tuple[float, StreamRing]] = {}
        self.total_bytes = 0

    @override
    def __repr__(self) -> str:
        return f"<RingStore {len(self._finished)} finished, {self.total_bytes} bytes>"

    def append(self, ring: StreamRing, delta: Delta) -> int:
        """Keep a delta of a live stream; return its size in bytes."""
        size = ring.append(delta)
        self.total_bytes += size
        if len(ring.buffer) > self._stream_bytes:
            self.total_bytes -= ring.drop_older_half()
        if self.total_bytes > self._total_bytes:
            self._make_room(ring)
        return size

    def finish(self, key: str, ring: StreamRing, *, now: float) -> None:
        """Keep the ring of a finished stream for a while."""
        self._finished[key] = (now, ring)

    def drop(self, ring: StreamRing) -> None:
        """Forget the ring of a live stream."""
        self.total_bytes -= ring.size

    def finished(self, key: str) -> StreamRing | None:
        """Return the ring of a finished stream, if it is still kept."""
        entry = self._finished.get(key)
        return None if entry is None else entry[1]

    def drop_finished(self, key: str) -> None:
        """Forget a finished stream; an unknown one changes nothing."""
        entry = self._finished.pop(key, None)
        if entry is not None:
            self.total_bytes -= entry[1].size

    def forget_old(self, now: float) -> None:
        """Drop the finished streams whose time is over."""
        while self._finished:
            key, (finished_at, _) = next(iter(self._finished.items()))
            if now - finished_at <= self._finished_s:
                return
            self.drop_finished(key)

    def _make_room(self, writer: StreamRing) -> None:
        """Free what is over the total bound; a live stream pays only when no finished one is left."""
        while self.total_bytes > self._total_bytes and self._finished:
            self.drop_finished(next(iter(self._finished)))
        if self.total_bytes > self._total_bytes:
            self.total_bytes -= writer.drop_older_half()
