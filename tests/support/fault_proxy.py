"""A TCP proxy before a NATS server that makes the network bad while it runs: frozen, cut, slow, narrow, and unreliable with messages.

Each peer gets a port of its own (`Link`), so that one of them can suffer alone. Runs in a thread with a loop of its own, so that a
busy caller does not look like a bad network. Understands frames on their way from the server to a client, and nothing of TLS.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Self, TypeVar

import msgspec

from tests.support.nats_frames import FrameSplitter, Mangler, MessageFaults

R = TypeVar("R")

HOST = "127.0.0.1"
CHUNK_BYTES = 64 << 10
HELD_BYTES = 4 << 20
"""What one direction of a connection holds back before it reads no more: the sender's own buffers fill then."""
SLICES_PER_S = 50
"""Writes a second of a throttled connection."""
COMMAND_S = 10.0


class LinkFaults(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a link; the default is a healthy one."""

    is_cut: bool = False
    """Connections are broken, and new ones as soon as they are made."""
    up_frozen: bool = False
    """What the client sends is held back; the connection stays."""
    down_frozen: bool = False
    """What the server sends is held back; the connection stays."""
    delay_s: float = 0.0
    """Everything takes so much longer, each way."""
    bytes_per_s: float | None = None
    """No more than this passes, each way."""
    messages: MessageFaults | None = None
    """What happens to messages to the client."""


HEALTHY = LinkFaults()
FROZEN = LinkFaults(up_frozen=True, down_frozen=True)
CUT = LinkFaults(is_cut=True)


class _Lane:
    """One direction of one connection: reads, lets faults act, writes what is due."""

    def __init__(
        self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_up: bool
    ) -> None:
        self._link = link
        self._reader = reader
        self._writer = writer
        self._is_up = is_up
        self._splitter = FrameSplitter()
        self._loop = asyncio.get_running_loop()
        self._held: deque[tuple[float, bytes]] = deque()
        self._held_bytes = 0
        self._changed = asyncio.Event()

    async def read(self) -> None:
        """Take what comes until the sender ends, as long as there is room."""
        with suppress(OSError):
            while chunk := await self._reader.read(CHUNK_BYTES):
                if self._is_up:
                    self._hold(chunk)
                else:
                    self._mangle(chunk)
                while self._held_bytes > HELD_BYTES:
                    await self._wait()
            while self._held:
                await self._wait()

    async def write(self) -> None:
        """Pass on what is due."""
        with suppress(OSError):
            while True:
                while not self._held:
                    await self._wait()
                due_at, content = self._held[0]
                await asyncio.sleep(max(0.0, due_at - self._loop.time()))
                while self._is_frozen:
                    await self._link.changed.wait()
                await self._pass(content)
                self._held.popleft()
                self._held_bytes -= len(content)
                self._changed.set()

    @property
    def _is_frozen(self) -> bool:
        faults = self._link.faults
        return faults.up_frozen if self._is_up else faults.down_frozen

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _mangle(self, chunk: bytes) -> None:
        faults = self._link.faults.messages
        whole = bytearray()
        for frame in self._splitter.feed(chunk):
            for late_s in self._link.mangler.fate(frame, faults):
                if late_s:
                    self._loop.call_later(late_s, self._hold, frame.content)
                else:
                    whole += frame.content
        if whole:
            self._hold(bytes(whole))

    def _hold(self, content: bytes) -> None:
        self._held.append((self._loop.time() + self._link.faults.delay_s, content))
        self._held_bytes += len(content)
        self._changed.set()

    async def _pass(self, content: bytes) -> None:
        """Write, at the link's speed."""
        while content:
            rate = self._link.faults.bytes_per_s
            size = len(content) if rate is None else max(1, int(rate / SLICES_PER_S))
            self._writer.write(content[:size])
            await self._writer.drain()
            content = content[size:]
            if rate is not None:
                await asyncio.sleep(1 / SLICES_PER_S)


class Link:
    """The way of one peer to the server: a port, and what is wrong with it. `FaultProxy.set` changes that."""

    def __init__(self, name: str, mangler: Mangler) -> None:
        self.name = name
        self.port = 0
        self.mangler = mangler
        self.faults = HEALTHY
        self.changed = asyncio.Event()
        """Replaced at each change of the faults."""
        self.connects = 0
        """Connections that the peer made or tried to make."""
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """Address for the peer."""
        return f"nats://{HOST}:{self.port}"

    def suffer(self, faults: LinkFaults) -> None:
        """Change what is wrong; on the proxy's loop."""
        self.faults = faults
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()
        if faults.is_cut:
            self.abort()

    def abort(self) -> None:
        """Break all connections; on the proxy's loop."""
        for writer in self._writers:
            writer.transport.abort()

    async def carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: tuple[str, int]
    ) -> None:
        """Carry one connection to its end."""
        self.connects += 1
        far: asyncio.StreamWriter | None = None
        self._writers.add(writer)
        try:
            if not self.faults.is_cut:
                far_reader, far = await asyncio.open_connection(*server)
                self._writers.add(far)
                up = _Lane(self, reader, far, is_up=True)
                down = _Lane(self, far_reader, writer, is_up=False)
                await _until_one_ends((up.read(), up.write(), down.read(), down.write()))
        except OSError:
            return
        finally:
            for end in (writer, far):
                if end is not None:
                    self._writers.discard(end)
                    end.transport.abort()


async def _until_one_ends(lanes: Iterable[Awaitable[None]]) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(lane) for lane in lanes]  # type: ignore[arg-type]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()


class FaultProxy:
    """All links to one server; a context manager. Its methods may be called from any thread and return when their effect is there."""

    def __init__(self, port: int, *, seed: int = 0) -> None:
        self.links: list[Link] = []
        self._server = (HOST, port)
        self._seed = seed
        self._ready: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run, name="fault proxy")

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop = self._ready.result(COMMAND_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def add(self, name: str) -> Link:
        """Open a port for a peer."""
        return self._do(lambda: self._open(name))

    def set(self, faults: LinkFaults, *links: Link) -> None:
        """Change what is wrong with some links; none named: with all."""

        async def change() -> None:
            for link in links or self.links:
                link.suffer(faults)

        self._do(change)

    def heal(self) -> None:
        """Make all links healthy."""
        self.set(HEALTHY)

    @property
    def connects(self) -> int:
        """Connections over all links, tried ones included."""
        return sum(link.connects for link in self.links)

    def _do(self, command: Callable[[], Awaitable[R]]) -> R:
        async def run() -> R:
            return await command()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(COMMAND_S)

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        self._listeners: list[asyncio.Server] = []
        self._carried: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as self._group:
            self._ready.set_result(asyncio.get_running_loop())
            await self._stop.wait()
            for listener in self._listeners:
                listener.close()
            for task in self._carried:
                task.cancel()

    async def _open(self, name: str) -> Link:
        link = Link(name, Mangler(self._seed + len(self.links)))

        def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._group.create_task(link.carry(reader, writer, self._server))
            self._carried.add(task)
            task.add_done_callback(self._carried.discard)

        listener = await asyncio.start_server(on_connection, HOST, 0)
        self._listeners.append(listener)
        link.port = listener.sockets[0].getsockname()[1]
        self.links.append(link)
        return link
