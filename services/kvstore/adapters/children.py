"""Processes of mirrors: started with a socket, killed, and looked at until they can run no instruction any more."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec

from services.kvstore.lifecycle import Trouble
from services.kvstore.orders import Choices
from shared.settings import environment

MODULE = "services.kvstore.adapters.mirror_child"
MALLOC = {"MALLOC_TRIM_THRESHOLD_": str(256 << 20), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
"""Keep the memory of LMDB's dirty pages instead of taking it from the kernel for each transaction."""

_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


class Child:
    """One process of a mirror. `sock` is the caller's."""

    def __init__(self, process: subprocess.Popen[bytes], folder: str, sock: socket.socket) -> None:
        self.sock = sock
        self.pid = process.pid
        self._process = process
        self._folder = folder

    @classmethod
    def start(cls, choices: Choices) -> Child:
        """Start a process. Raises `OSError`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(theirs.fileno()), msgspec.json.encode(choices)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**environment(), **MALLOC},
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return cls(process, choices.folder, ours)

    def kill(self) -> None:
        """Send the kill, also to a process that is gone."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)

    def ended(self) -> int | None:
        """Return the exit code once the process is reaped; a signal's is negative."""
        return self._process.poll()

    def is_starved(self) -> bool:
        """Return whether a thread wants to run: it waits for a processor then, and not for a disk."""
        try:
            threads = list(Path(f"/proc/{self.pid}/task").iterdir())
            return any(_state(thread) == "R" for thread in threads)
        except OSError:
            return False

    def is_quiet(self) -> bool:
        """Return whether no thread runs, or will, outside the kernel: only to be asked after `kill`.

        A thread that waits in the kernel with the kill pending never comes back; but what it does there may go on,
        so that a write into a region must have ended. What cannot be seen counts as running.
        """
        try:
            threads = list(Path(f"/proc/{self.pid}/task").iterdir())
            return all(self._is_quiet_thread(thread) for thread in threads)
        except FileNotFoundError:
            return self.ended() is not None
        except OSError:
            return False

    def _is_quiet_thread(self, thread: Path) -> bool:
        state = _state(thread)
        if state in "ZXx":
            return True
        if state != "D":
            return False
        words = (thread / "syscall").read_text().split()
        if words[0] == "running":
            return False
        if words[0] == "-1":  # in a page fault: it ends when the thread does
            return True
        try:
            target = (thread / "fd" / str(int(words[1], 16))).readlink()
        except (FileNotFoundError, ProcessLookupError):
            return True  # no call with a descriptor first
        return target.is_relative_to(Path(self._folder).resolve())


def _state(thread: Path) -> str:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


def death(code: int) -> tuple[Trouble, str]:
    """Return what an exit code says of the files, and to people."""
    if code >= 0:
        return Trouble.CRASHED, f"its process ended with {code}"
    trouble = Trouble.KILLED if -code in _FROM_OUTSIDE else Trouble.CRASHED
    return trouble, f"its process was ended by {signal.Signals(-code).name}"
