"""A zygote from outside: the process that has the slow imports behind it and forks other processes on request.

Starts one, asks it for children, signals them, learns how they ended; the messages between the two stand here as well.
What is imported and what a child runs is the zygote's command line: nothing of it is known here.
Zygote and children live no longer than the process that started the zygote, however that ends.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated

import msgspec
from typing_extensions import override

from shared.errors import HeadraceError

MAX_LINE_BYTES = 1 << 20
"""Longest message; arguments and environment of a child take a few KiB."""
SPAWN_TIMEOUT_S = 10.0
"""A fork takes milliseconds: a zygote that needs longer is stuck."""
STOP_TIMEOUT_S = 5.0
"""From closing the socket to the zygote's end, and from SIGKILL."""


class Spawn(msgspec.Struct, frozen=True, tag="spawn"):
    """Client to zygote: fork a child."""

    ticket: int
    """Chosen by the client; the answer carries it."""
    argv: list[str]
    """Arguments of the child's main function, without a program name."""
    env: dict[str, str]
    """Set on top of the zygote's own environment."""
    log: str
    """File that gets the child's output, appended."""


class Signal(msgspec.Struct, frozen=True, tag="signal"):
    """Client to zygote: signal a child. Never sent to a stranger: the zygote knows whether the child still owns its process id."""

    pid: int
    number: Annotated[int, msgspec.Meta(ge=1, le=64)]


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Zygote to client: the imports are done."""

    preload_s: float
    threads: int
    """Threads of the zygote: 1, or its children may hang on a lock that another thread held."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Zygote to client, before it ends: the imports failed."""

    reason: str


class Spawned(msgspec.Struct, frozen=True, tag="spawned"):
    """Zygote to client: the child runs."""

    ticket: int
    pid: int


class NotSpawned(msgspec.Struct, frozen=True, tag="not_spawned"):
    """Zygote to client: there is no child, and why."""

    ticket: int
    reason: str


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """Zygote to client: the child ended, and so did all that it had started in its process group."""

    pid: int
    code: int
    """Exit code; minus the number where a signal ended it."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Zygote to client: a line that is no request; it was dropped."""

    reason: str


Request = Spawn | Signal
Event = Ready | Failed | Spawned | NotSpawned | Exited | Refused

REQUESTS = msgspec.json.Decoder(Request)
EVENTS = msgspec.json.Decoder(Event)


def encode(message: Request | Event) -> bytes:
    """Return a message as one line."""
    return msgspec.json.encode(message) + b"\n"


class ZygoteGone(HeadraceError):
    """The zygote ended, failed or hangs; a new one may be started."""


class ZygoteChild:
    """A child of the zygote."""

    def __init__(self, zygote: ZygoteClient, pid: int, ended: asyncio.Future[int]) -> None:
        self.pid = pid
        self._zygote = zygote
        self._ended = ended

    @override
    def __repr__(self) -> str:
        return f"<ZygoteChild pid={self.pid} {'ended' if self._ended.done() else 'running'}>"

    async def wait(self) -> int:
        """Return its exit code when it ended; minus the number where a signal ended it. Safe to call twice."""
        return await asyncio.shield(self._ended)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; one that has ended is ignored."""
        if not self._ended.done():
            self._zygote.send(Signal(self.pid, number))


class ZygoteClient:
    """The running zygote. Made by `start`; not safe to use from several threads."""

    def __init__(self, process: asyncio.subprocess.Process, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        self._process = process
        self._writer = writer
        self._ready: asyncio.Future[Ready] = loop.create_future()
        self._asked: dict[int, asyncio.Future[ZygoteChild]] = {}
        self._running: dict[int, asyncio.Future[int]] = {}
        self._tickets = 0
        self._gone = ""

    @override
    def __repr__(self) -> str:
        state = self._gone or ("ready" if self._ready.done() else "starting")
        return f"<ZygoteClient pid={self.pid} {state} children={len(self._running)}>"

    @classmethod
    async def start(
        cls, argv: Sequence[str], *, env: Mapping[str, str], log: Path, group: asyncio.TaskGroup
    ) -> ZygoteClient:
        """Start a zygote by its command line, to which `--fd N` is added; its output goes to `log`. Raises `OSError`.

        A task in `group` follows it until it ends; its end does not fail the group.
        """
        ours, theirs = socket.socketpair()
        with closing(theirs), log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *argv,
                f"--fd={theirs.fileno()}",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(env),
                start_new_session=True,
                pass_fds=[theirs.fileno()],
            )
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=MAX_LINE_BYTES)
        client = cls(process, writer)
        group.create_task(client._follow(reader), name=f"zygote {process.pid}")
        return client

    @property
    def pid(self) -> int:
        """Process id of the zygote."""
        return self._process.pid

    @property
    def is_gone(self) -> bool:
        """Whether it ended: nothing can be spawned any more, and its children are dead."""
        return bool(self._gone)

    async def ready(self, timeout_s: float) -> Ready:
        """Return when its imports are done. Raises `ZygoteGone`; also safe to call twice."""
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self._ready)
        except TimeoutError as error:
            raise ZygoteGone(f"not ready within {timeout_s:.0f} s") from error

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], log: Path) -> ZygoteChild:
        """Fork a child of a zygote that is ready. Raises `ZygoteGone`, and `OSError` where only this child cannot be."""
        self._tickets += 1
        ticket = self._tickets
        answer: asyncio.Future[ZygoteChild] = asyncio.get_running_loop().create_future()
        self._asked[ticket] = answer
        try:
            self.send(Spawn(ticket, list(argv), dict(env), str(log)))
            async with asyncio.timeout(SPAWN_TIMEOUT_S):
                return await answer
        except TimeoutError as error:
            raise ZygoteGone(f"no child within {SPAWN_TIMEOUT_S:.0f} s") from error
        finally:
            self._asked.pop(ticket, None)

    def send(self, request: Request) -> None:
        """Send a request. Raises `ZygoteGone`."""
        if self._gone:
            raise ZygoteGone(self._gone)
        self._writer.write(encode(request))

    async def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End it, and with it all children that still run; kill it where it hangs. A second call changes nothing."""
        self._writer.close()
        try:
            async with asyncio.timeout(timeout_s):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._process.wait()

    async def _follow(self, reader: asyncio.StreamReader) -> None:
        """Read events until the zygote is gone; then nobody waits for it any longer."""
        try:
            with suppress(ConnectionError):
                while line := await reader.readline():
                    self._on_event(EVENTS.decode(line))
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            self._gone = f"it sends what is no event: {error}"
        finally:
            self._writer.close()
            self._leave_nobody_waiting()

    def _on_event(self, event: Event) -> None:
        match event:
            case Ready() if self._ready.done():
                raise ValueError("it is ready a second time")
            case Ready():
                self._ready.set_result(event)
            case Failed(reason):
                self._gone = reason
            case Spawned(ticket, pid):
                self._on_spawned(ticket, pid)
            case NotSpawned(ticket, reason):
                asked = self._asked.get(ticket)
                if asked is not None and not asked.done():
                    asked.set_exception(OSError(reason))
            case Exited(pid, code):
                if pid not in self._running:
                    raise ValueError(f"process {pid}, which is none of its children, ended")
                self._running.pop(pid).set_result(code)
            case Refused(reason):
                raise ValueError(reason)

    def _on_spawned(self, ticket: int, pid: int) -> None:
        ended = self._running[pid] = asyncio.get_running_loop().create_future()
        asked = self._asked.get(ticket)
        if asked is None or asked.done():  # given up meanwhile: nobody would ever end it
            self.send(Signal(pid, signal.SIGKILL))
        else:
            asked.set_result(ZygoteChild(self, pid, ended))

    def _leave_nobody_waiting(self) -> None:
        self._gone = self._gone or "it ended"
        if not self._ready.done():
            self._ready.set_exception(ZygoteGone(self._gone))
            self._ready.exception()  # seen: nobody may have asked
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(ZygoteGone(self._gone))
        for ended in self._running.values():
            ended.set_result(-signal.SIGKILL)  # the kernel's signal at the end of their parent
        self._running.clear()
