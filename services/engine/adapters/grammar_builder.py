"""The process that tries grammars out: it forks a child for each, and the kernel ends a child that goes beyond its bounds.

Nothing can stop the library that builds grammars, and a crash in it takes its process along; so nobody builds one where it matters before
it was built here. This process itself builds none, which keeps it free of threads, so that it may fork.
"""

from __future__ import annotations

import os
import resource
import selectors
import signal
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from services.engine.adapters.grammar_frames import Bounds, Build, Built, Load, Outcome
from services.engine.adapters.render_frames import FrameReader, frame

Compile = Callable[[str, str], object]
"""Builds a grammar of a kind from its text; raises where there is none."""
LoadCompile = Callable[[bytes], Compile]
"""Gets ready to build, from what `Load` brings."""

PARALLEL = max(1, min(4, (os.cpu_count() or 1) // 2))
"""Builds at a time; the others wait."""
NICE = 5
"""Whoever is served meanwhile goes before."""
MAX_MESSAGE_CHARS = 2000
_READ_BYTES = 1 << 16
_MAPPED = Path("/proc/self/statm")
_INVALID, _COSTLY = 1, 2


class Builder:
    """Serves one engine on one socket."""

    def __init__(self, stream: socket.socket, load: LoadCompile, bounds: Bounds) -> None:
        self._stream = stream
        self._load = load
        self._bounds = bounds
        self._setup = b""
        self._compile: Compile | None = None
        self._jobs: deque[Build] = deque()
        self._running: dict[int, tuple[int, Build, int]] = {}
        """By process: its descriptor, its job, the file for what it says."""
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Return when the other side is gone."""
        reader = FrameReader()
        decoder = msgspec.msgpack.Decoder(Load | Build)
        self._selector.register(self._stream, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._stream:
                    self._bury(key.data)
                    continue
                data = self._stream.recv(_READ_BYTES)
                if not data:
                    return
                for body in reader.feed(data):
                    self._take(decoder.decode(body))
            while self._jobs and len(self._running) < PARALLEL:
                self._start(self._jobs.popleft())

    def _take(self, message: Load | Build) -> None:
        if isinstance(message, Load):
            self._setup = message.setup
        else:
            self._jobs.append(message)

    def _start(self, job: Build) -> None:
        if self._compile is None:
            # Not before it is needed: most engines are never asked for JSON.
            self._compile = self._load(self._setup)
        says = os.memfd_create("grammar")
        pid = os.fork()
        if pid == 0:
            os._exit(_build(self._compile, job, says, self._bounds))
        pidfd = os.pidfd_open(pid)
        self._running[pid] = (pidfd, job, says)
        self._selector.register(pidfd, selectors.EVENT_READ, pid)

    def _bury(self, pid: int) -> None:
        pidfd, job, says = self._running.pop(pid)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        said = os.pread(says, MAX_MESSAGE_CHARS * 4, 0).decode(errors="replace")
        os.close(says)
        self._stream.sendall(frame(Built(job.number, _outcome(status), said)))


def _build(compile_: Compile, job: Build, says: int, bounds: Bounds) -> int:
    """Build within the bounds; return the exit code."""
    _bound(bounds)
    try:
        compile_(job.kind, job.spec)
    except Exception as error:  # noqa: BLE001 - a library that reads what strangers wrote may raise anything
        if isinstance(error, MemoryError) or "bad_alloc" in str(error):
            return _COSTLY
        os.write(says, str(error)[:MAX_MESSAGE_CHARS].encode(errors="replace"))
        return _INVALID
    return 0


def _bound(bounds: Bounds) -> None:
    """Have the kernel end this process at its bounds: signals without a handler, which nothing can put off."""
    os.nice(NICE)
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, bounds.cpu_s)
    signal.setitimer(signal.ITIMER_REAL, bounds.wall_s)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = _mapped_bytes() + bounds.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _mapped_bytes() -> int:
    return int(_MAPPED.read_bytes().split()[0]) * resource.getpagesize()


def _outcome(status: int) -> Outcome:
    if os.WIFSIGNALED(status):
        is_slow = os.WTERMSIG(status) == signal.SIGALRM
        return Outcome.TOO_SLOW if is_slow else Outcome.TOO_COSTLY
    code = os.WEXITSTATUS(status)
    return {0: Outcome.BUILT, _INVALID: Outcome.INVALID}.get(code, Outcome.TOO_COSTLY)
