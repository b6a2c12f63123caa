"""The store's socket on both sides, over real Unix sockets: order, bounds, garbage, and readers that do not read."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from pathlib import Path

import pytest

from shared.kv.client import CannotConnect, Client
from shared.kv.link import Link
from shared.kv.protocol import (
    MAX_PACKET,
    VERSION,
    Done,
    FromEngine,
    Gained,
    Hello,
    Load,
    Lost,
    Rejected,
    Touch,
    Welcome,
)
from shared.kv.seqpacket import encode, listen, send
from tests.support.in_loop import in_loop


def a_hello() -> Hello:
    return Hello(version=VERSION, engine="e", namespace="n" * 32, value_bytes=4096, slots=4)


@pytest.fixture
def region() -> int:
    fd = os.memfd_create("region")
    os.ftruncate(fd, 4 * 4096)
    yield fd
    os.close(fd)


class Peer:
    """A store's end of one connection: sees all, and says what the test wants."""

    def __init__(self, path: Path, **bounds: float) -> None:
        self.seen: list[object] = []
        self.fds: list[int] = []
        self.ended: list[str] = []
        self._bounds = bounds
        self._loop = asyncio.get_running_loop()
        self._listener = listen(path)
        self._loop.add_reader(self._listener.fileno(), self._accept)
        self.link: Link | None = None

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        self.link = Link(
            sock, FromEngine, on_message=self._on, on_end=self.ended.append, **self._bounds
        )

    def _on(self, message, fds) -> None:
        self.seen.append(message)
        self.fds += fds
        if isinstance(message, Hello):
            self.welcome()

    def welcome(self) -> None:
        reading, writing = os.pipe()
        self.life = writing
        self.link.send(Welcome(version=VERSION, store="s"), [reading])

    def close(self) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        if self.link:
            self.link.end("test over")
        for fd in self.fds:
            os.close(fd)
        with contextlib.suppress(OSError, AttributeError):
            os.close(self.life)


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "kv.sock"


async def connected(path: Path, region: int, **bounds: float) -> tuple[Peer, Client]:
    peer = Peer(path, **bounds)
    client = await asyncio.to_thread(Client.connect, str(path), a_hello(), region, deadline_s=2)
    return peer, client


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def until(condition, deadline_s: float = 3.0) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@in_loop
async def test_jobs_keys_and_life_lines_travel(path, region):
    peer, client = await connected(path, region)
    assert os.fstat(peer.fds[0]).st_ino == os.fstat(region).st_ino
    peer.link.send(Gained(keys=[b"a", b"b", b"c"]))
    peer.link.send(Lost(keys=[b"b"]))

    assert client.load(7, [b"a"], [2])
    await until(lambda: Load(job=7, keys=[b"a"], slots=[2]) in peer.seen)
    peer.link.send(Done(job=99), urgent=True)  # a job that nobody gave
    peer.link.send(Done(job=7, missing=[0]), urgent=True)

    assert await asyncio.to_thread(client.wait, 2.0) == [Done(job=7, missing=[0])]
    await until(lambda: client.keys == {b"a", b"c"})
    assert b"a" in client
    peer.link.end("enough")
    await until(lambda: not client.is_alive)
    assert not client.keys
    assert not client.load(8, [b"a"], [2])
    assert not client.has_let_go, "the life line has not ended"
    os.close(peer.life)
    assert client.has_let_go
    peer.close()


@in_loop
async def test_calls_say_when_full_and_wait_for_nobody(path, region):
    peer, client = await connected(path, region)
    peer._loop.remove_reader(peer.link._sock.fileno())  # a store that does not read
    keys = [os.urandom(36) for _ in range(2000)]
    taken = 0
    while client.touch(keys):
        taken += 1
        assert taken < 5000
    assert not client.load(1, keys[:1], [0])
    assert taken >= 1024
    assert client.under_way == frozenset()
    peer._loop.add_reader(peer.link._sock.fileno(), peer.link._read)
    await until(lambda: sum(isinstance(m, Touch) for m in peer.seen) >= taken)
    assert client.load(1, keys[:1], [0])
    client.close()
    await until(lambda: peer.ended)
    peer.close()


@in_loop
async def test_a_reader_that_does_not_read_is_cut_off_by_count_and_by_time(path, region):
    for bounds in ({"max_waiting": 50}, {"max_stall_s": 0.2}):
        peer = Peer(path, **bounds)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(str(path))
        await until(lambda: peer.link is not None)  # noqa: B023
        for _ in range(200 if "max_waiting" in bounds else 20):
            peer.link.send(Gained(keys=[b"x" * 36] * 2000))
        await until(lambda: peer.ended)  # noqa: B023
        assert "does not read" in peer.ended[0]
        sock.close()
        peer.close()


@in_loop
async def test_urgent_messages_pass_those_that_wait(path):
    peer = Peer(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(str(path))
    await until(lambda: peer.link is not None)
    for _ in range(50):
        peer.link.send(Gained(keys=[b"x" * 36] * 2000))
    before = 50 - peer.link.waiting
    peer.link.send(Done(job=1), urgent=True)

    def read() -> int:
        return next(n for n in range(60) if len(sock.recv(MAX_PACKET)) < 100)

    assert await asyncio.to_thread(read) == before
    sock.close()
    peer.close()


@pytest.mark.parametrize(
    "packet",
    [b"\xc1", b"x" * 100, os.urandom(1000), b"\x91" * 5000, encode(Welcome(version=1, store=""))],
)
@in_loop
async def test_garbage_ends_only_its_connection(path, packet, region):
    peer, client = await connected(path, region)
    first = peer.link
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(str(path))
    await until(lambda: peer.link is not first)
    before = open_descriptors()
    send(sock, packet, [region, region])
    await until(lambda: peer.ended)
    assert open_descriptors() == before - 1, "its socket, and no descriptor stays"
    assert first.is_open
    assert client.is_alive
    sock.close()
    first.end("")
    peer.close()


@in_loop
async def test_what_is_too_large_ends_the_connection(path, region):
    peer = Peer(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(str(path))
    send(sock, b"x" * (MAX_PACKET + 1))
    await until(lambda: peer.ended)
    assert "too large" in peer.ended[0]
    sock.close()
    with pytest.raises(ValueError, match="a packet holds"):
        encode(Gained(keys=[b"x" * 36] * 4000))
    peer.close()


def test_connecting_says_why_not(path, region):
    with pytest.raises(CannotConnect, match="No such file"):
        Client.connect(str(path), a_hello(), region, deadline_s=0.5)
    listener = listen(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(CannotConnect, match="no answer in time"):
        Client.connect(str(path), a_hello(), region, deadline_s=0.2)
    with pytest.raises(OSError, match="another process listens"):
        listen(path)

    listener.setblocking(True)
    answers = [Rejected(reason="too many engines"), Welcome(version=VERSION + 1, store="s")]

    def answer() -> None:
        for _ in range(2):  # the one that gave up, and the one that looked
            listener.accept()[0].close()
        for message in answers:
            sock, _ = listener.accept()
            sock.recv(MAX_PACKET)
            send(sock, encode(message))
            sock.close()

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(CannotConnect, match="too many engines"):
        Client.connect(str(path), a_hello(), region, deadline_s=2)
    with pytest.raises(CannotConnect, match="version"):
        Client.connect(str(path), a_hello(), region, deadline_s=2)
    thread.join()
    listener.close()
    listen(path).close()  # what nobody listens on any more is replaced


def test_jobs_that_cannot_be_are_refused(path, region):
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client = Client(a, [], store="s")
    with pytest.raises(ValueError, match="2 keys for 1 slots"):
        client.load(1, [b"a", b"b"], [0])
    assert client.save(1, [b"a"], [0])
    with pytest.raises(ValueError, match="under way"):
        client.save(1, [b"a"], [0])
    b.close()
    client.close()
    assert client.has_let_go
    assert client.under_way == {1}
