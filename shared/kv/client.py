"""The engine's side of the store's socket: one connection, one thread that reads and writes, and calls that never wait.

Made for vLLM's scheduler loop: `load`, `save` and `touch` put a message in a bounded outbox and say whether there was room;
`poll` returns the jobs that have ended; a lookup is one probe of a set.
The thread takes in `Gained` and `Lost`, so an idle engine is no slow reader.
A client lives as long as its connection. Reconnecting is the caller's: make another one, with the same region.

A job whose `Done` has not come when the connection ends may still be written to: see `has_let_go`.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence

import msgspec
from typing_extensions import override

from shared.kv.protocol import (
    KEYS_A_PACKET,
    VERSION,
    Done,
    FromStore,
    Gained,
    Hello,
    LifeLines,
    Load,
    Lost,
    Rejected,
    Save,
    Touch,
    Welcome,
)
from shared.kv.seqpacket import BadPacket, Ended, close_all, encode, receive, send

MAX_OUTBOX = 1024
"""Messages that may wait for the store to read them."""
MAX_JOBS = 4096
"""Jobs under way at most."""
_BURST = 256

_decoder: msgspec.msgpack.Decoder[FromStore] = msgspec.msgpack.Decoder(FromStore)


class CannotConnect(Exception):
    """There is no store, it did not answer in time, or it does not want this engine; the message says which."""


class Client:
    """One connection to the store; made by `connect`."""

    def __init__(self, sock: socket.socket, life_lines: list[int], *, store: str) -> None:
        self.store = store
        """What the store calls itself."""
        self.keys: set[bytes] = set()
        """What can be loaded now; read it, do not change it."""
        self.why_ended = ""
        self._sock = sock
        self._life_lines = life_lines
        self._lock = threading.Lock()
        self._outbox: deque[bytes] = deque()
        self._jobs: set[int] = set()
        self._done: deque[Done] = deque()
        self._news = threading.Event()
        self._alive = True
        self._wake_in, self._wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._closing = False
        sock.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="kv store client", daemon=True)
        self._thread.start()

    @classmethod
    def connect(cls, path: str, hello: Hello, region_fd: int, *, deadline_s: float) -> Client:
        """Return a connection over which jobs may be given. Waits `deadline_s` at most; the descriptor stays the caller's.

        Raises `CannotConnect`.
        """
        ends_at = time.monotonic() + deadline_s
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(max(0.001, deadline_s))
        try:
            sock.connect(path)
            send(sock, encode(hello), [region_fd])
            sock.settimeout(max(0.001, ends_at - time.monotonic()))
            packet, fds = receive(sock)
        except (OSError, ValueError, Ended, BadPacket) as error:
            sock.close()
            raise CannotConnect(f"no KV store at {path}: {error}") from error
        try:
            answer = _decoder.decode(packet)
            refused = answer.reason if isinstance(answer, Rejected) else ""
            if isinstance(answer, Welcome) and answer.version == VERSION:
                return cls(sock, fds, store=answer.store)
        except msgspec.DecodeError as error:
            refused = str(error)
        close_all(fds)
        sock.close()
        raise CannotConnect(
            f"the KV store at {path} said no: {refused or 'it is of another version'}"
        )

    @override
    def __repr__(self) -> str:
        state = "alive" if self._alive else f"ended ({self.why_ended})"
        return f"<Client {state} keys={len(self.keys)} jobs={len(self._jobs)}>"

    def __contains__(self, key: bytes) -> bool:
        return key in self.keys

    @property
    def is_alive(self) -> bool:
        """Return whether jobs can be given and will be answered."""
        return self._alive

    @property
    def under_way(self) -> frozenset[int]:
        """Return the jobs that were given and have not ended; after the connection's end their slots are to be kept aside."""
        with self._lock:
            return frozenset(self._jobs)

    @property
    def has_let_go(self) -> bool:
        """Return whether nothing of the store can touch a slot any more: the connection and all life lines have ended. Does not wait."""
        if self._alive:
            return False
        with self._lock:
            lines, self._life_lines = self._life_lines, []
            ended = [fd for fd in lines if _has_ended(fd)]
            self._life_lines = [fd for fd in lines if fd not in ended]
            close_all(ended)
            return not self._life_lines

    def load(self, job: int, keys: Sequence[bytes], slots: Sequence[int]) -> bool:
        """Ask for values in these slots; False: no room or no connection, and nothing was asked. Does not wait."""
        return self._give(Load(job=job, keys=list(keys), slots=list(slots)))

    def save(self, job: int, keys: Sequence[bytes], slots: Sequence[int]) -> bool:
        """Have what is in these slots kept; False as for `load`. Does not wait."""
        return self._give(Save(job=job, keys=list(keys), slots=list(slots)))

    def touch(self, keys: Sequence[bytes]) -> bool:
        """Say that these were of use; False as for `load`. Does not wait."""
        starts = range(0, len(keys), KEYS_A_PACKET)
        packets = (encode(Touch(keys=list(keys[at : at + KEYS_A_PACKET]))) for at in starts)
        return all(self._post(packet, job=None) for packet in packets)

    def poll(self) -> list[Done]:
        """Return the jobs that have ended since the last call. Does not wait."""
        found: list[Done] = []
        self._news.clear()
        while self._done:
            found.append(self._done.popleft())
        return found

    def wait(self, timeout_s: float) -> list[Done]:
        """As `poll`, but wait for one to end, or for the connection to."""
        if not self._done and self._alive:
            self._news.wait(timeout_s)
        return self.poll()

    def close(self) -> None:
        """End the connection. Life lines are still looked at by `has_let_go`. A second call changes nothing."""
        self._closing = True
        with self._lock:
            if self._alive:
                self._wake()
        self._thread.join(timeout=1.0)

    def _give(self, message: Load | Save) -> bool:
        if len(message.keys) != len(message.slots):
            raise ValueError(f"{len(message.keys)} keys for {len(message.slots)} slots")
        if len(message.keys) > KEYS_A_PACKET:
            raise ValueError(f"{len(message.keys)} keys in a job; {KEYS_A_PACKET} fit")
        return self._post(encode(message), job=message.job)

    def _post(self, packet: bytes, *, job: int | None) -> bool:
        with self._lock:
            if not self._alive or len(self._outbox) >= MAX_OUTBOX:
                return False
            if job is not None:
                if len(self._jobs) >= MAX_JOBS:
                    return False
                if job in self._jobs:
                    raise ValueError(f"job {job} is under way already")
                self._jobs.add(job)
            self._outbox.append(packet)
            self._flush()
            if self._outbox:
                self._wake()
        return True

    def _flush(self) -> None:
        """Send what the socket takes; the lock is held."""
        while self._outbox:
            try:
                send(self._sock, self._outbox[0])
            except (BlockingIOError, Ended):  # an end is seen, and told, by the thread
                return
            self._outbox.popleft()

    def _wake(self) -> None:
        """Have the thread look again; the lock is held and the thread alive."""
        with contextlib.suppress(BlockingIOError):  # enough wakes wait already
            os.write(self._wake_out, b"\0")

    # --- the thread

    def _run(self) -> None:
        why = "closed by the engine"
        try:
            while not self._closing:
                self._turn()
        except (Ended, BadPacket) as error:
            why = str(error)
        except (msgspec.DecodeError, RecursionError) as error:
            why = f"the store sent no message: {error}"
        self._end(why)

    def _turn(self) -> None:
        poller = select.poll()
        poller.register(self._wake_in, select.POLLIN)
        poller.register(self._sock, select.POLLIN | (select.POLLOUT if self._outbox else 0))
        for fd, _ in poller.poll():
            if fd == self._wake_in:
                os.read(self._wake_in, 4096)
        with self._lock:
            self._flush()
        for _ in range(_BURST):
            try:
                packet, fds = receive(self._sock)
            except BlockingIOError:
                return
            self._take(packet, fds)

    def _take(self, packet: bytes, fds: list[int]) -> None:
        with self._lock:
            self._life_lines += fds
        message = _decoder.decode(packet)
        match message:
            case Gained(keys=keys):
                self.keys.update(keys)
            case Lost(keys=keys):
                self.keys.difference_update(keys)
            case Done(job=job):
                with self._lock:
                    is_known = job in self._jobs
                    self._jobs.discard(job)
                if is_known:
                    self._done.append(message)
                    self._news.set()
            case Rejected(reason=reason):
                raise Ended(reason)
            case Welcome() | LifeLines():
                return

    def _end(self, why: str) -> None:
        with self._lock:
            self._alive = False
            self.why_ended = why
            self._outbox.clear()
            self.keys = set()
            self._sock.close()
            close_all([self._wake_in, self._wake_out])
            self._wake_in = self._wake_out = -1
        self._news.set()


def _has_ended(fd: int) -> bool:
    """Return whether nobody holds the other end of this pipe."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in poller.poll(0))
