"""Engines at the socket: who is connected, what they are told, what they may ask. Knows nothing of mirrors."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from services.kvstore.trailer import KEY_ROOM
from services.kvstore.work import Job, packets
from shared import logs
from shared.kv.link import Link
from shared.kv.protocol import (
    VERSION,
    FromEngine,
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
from shared.kv.seqpacket import close_all, listen

MAX_VALUE_BYTES = 256 << 20
_NAMESPACE = re.compile(r"[0-9a-f]{32}")


class Session:
    """One connection of an engine."""

    def __init__(self, number: int, link: Link[FromEngine] | None) -> None:
        self.number = number
        self.hello: Hello | None = None
        self.region_fd = -1
        self.jobs: dict[int, Job] = {}
        self.link = link

    @override
    def __repr__(self) -> str:
        name = self.hello.engine if self.hello else "?"
        return f"<Session {self.number} {name} jobs={len(self.jobs)}>"

    @property
    def space(self) -> str:
        """Return its namespace."""
        return self.hello.namespace if self.hello else ""

    @property
    def is_open(self) -> bool:
        """Return whether the engine is still there."""
        return self.link is not None and self.link.is_open

    def tell(self, gained: list[bytes], lost: list[bytes]) -> None:
        """Send news of keys."""
        assert self.link is not None
        for part in packets(gained):
            self.link.send(Gained(keys=part))
        for part in packets(lost):
            self.link.send(Lost(keys=part))

    def fault(self, message: Load | Save) -> str:
        """Return what is wrong with a job; empty: nothing."""
        assert self.hello is not None
        slots = self.hello.slots
        if len(message.keys) != len(message.slots):
            return "keys and slots are not as many"
        if any(not 0 <= slot < slots for slot in message.slots):
            return f"a slot beyond the {slots} of the region"
        if len(set(message.slots)) != len(message.slots):
            return "a slot twice in one job"
        if any(not 0 < len(key) <= KEY_ROOM for key in message.keys):
            return f"a key is 1 to {KEY_ROOM} bytes"
        if message.job in self.jobs:
            return f"job {message.job} is under way already"
        return ""


class Host(Protocol):
    """What sessions need of the store."""

    def refuse(self, hello: Hello) -> str:
        """Return why this engine cannot be served; empty: it can."""
        ...

    def welcome(self, session: Session) -> list[int]:
        """Let the engine's region be copied from and to; return life lines."""
        ...

    def ask(self, session: Session, message: Load | Save | Touch) -> None:
        """Take a job, or a use."""
        ...

    def left(self, session: Session) -> None:
        """Forget the engine."""
        ...


class Sessions:
    """The listening socket and all its connections."""

    def __init__(self, path: Path, host: Host, *, store: str, max_engines: int) -> None:
        self.all: dict[int, Session] = {}
        self.rejected = 0
        self.cut_off = 0
        self._host = host
        self._store = store
        self._max = max_engines
        self._number = 0
        self._path = path
        self._listener: socket.socket | None = None
        self._stop_listening: Callable[[], None] = lambda: None
        self._log = logs.get("kvstore")

    def open(self, add_reader: Callable[[int, Callable[[], None]], None]) -> None:
        """Listen. Raises `OSError`."""
        self._listener = listen(self._path)
        add_reader(self._listener.fileno(), self._accept)

    def close(self, remove_reader: Callable[[int], object]) -> None:
        """Stop listening and end all connections."""
        if self._listener is not None:
            remove_reader(self._listener.fileno())
            self._listener.close()
            self._path.unlink(missing_ok=True)
        for session in list(self.all.values()):
            if session.link is not None:
                session.link.end("the store stops")

    def of_space(self, space: str) -> list[Session]:
        """Return the sessions of a namespace."""
        return [session for session in self.all.values() if session.space == space]

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        self._number += 1
        session = Session(self._number, None)
        session.link = Link(
            sock,
            FromEngine,
            on_message=lambda message, fds: self._on_message(session, message, fds),
            on_end=lambda reason: self._on_end(session, reason),
        )
        self.all[session.number] = session

    def _on_message(self, session: Session, message: FromEngine, fds: list[int]) -> None:
        link = session.link
        assert link is not None
        if isinstance(message, Hello):
            if session.hello is not None or not self._begin(session, message, fds):
                close_all(fds)
                link.end("no second hello")
            return
        close_all(fds)
        if session.hello is None:
            self._reject(session, "the first message is `Hello`")
            return
        if isinstance(message, Load | Save) and (fault := session.fault(message)):
            self._reject(session, fault)
            return
        self._host.ask(session, message)

    def _begin(self, session: Session, hello: Hello, fds: list[int]) -> bool:
        reason = _fault_of(hello, fds) or self._host.refuse(hello)
        if not reason and len(self.all) > self._max:
            reason = f"{self._max} engines are connected already"
        if reason:
            self._reject(session, reason)
            return False
        session.hello = hello
        session.region_fd = fds[0]
        lines = self._host.welcome(session)
        assert session.link is not None
        session.link.send(Welcome(version=VERSION, store=self._store), lines)
        self._log.info("engine_connected", engine=hello.engine, namespace=hello.namespace)
        return True

    def _reject(self, session: Session, reason: str) -> None:
        self.rejected += 1
        assert session.link is not None
        session.link.send(Rejected(reason=reason), urgent=True)
        session.link.end(f"rejected: {reason}")

    def _on_end(self, session: Session, reason: str) -> None:
        self.all.pop(session.number, None)
        if session.hello is not None:
            if "does not read" in reason or "message" in reason or "rejected" in reason:
                self.cut_off += 1
            self._host.left(session)
            close_all([session.region_fd])
            self._log.info("engine_left", engine=session.hello.engine, reason=reason)


def send_life_lines(session: Session, lines: list[int]) -> None:
    """Hand an engine the life lines of further processes."""
    if lines and session.link is not None:
        session.link.send(LifeLines(), lines)


def _fault_of(hello: Hello, fds: list[int]) -> str:
    """Return what is wrong with a hello; empty: nothing."""
    if hello.version != VERSION:
        return f"the store speaks version {VERSION}, the engine {hello.version}"
    if not _NAMESPACE.fullmatch(hello.namespace):
        return "the namespace is 32 hexadecimal digits"
    if not 0 < hello.value_bytes <= MAX_VALUE_BYTES or hello.slots <= 0:
        return f"values have 1 to {MAX_VALUE_BYTES} bytes, and there is one slot at least"
    return _fault_of_region(hello.slots * hello.value_bytes, fds)


def _fault_of_region(needed_bytes: int, fds: list[int]) -> str:
    if len(fds) != 1:
        return "the region's descriptor is missing"
    try:
        size = os.fstat(fds[0]).st_size
    except OSError as error:
        return f"the region: {error.strerror}"
    return f"the region has {size} bytes, {needed_bytes} are needed" if size < needed_bytes else ""
