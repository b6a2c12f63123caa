"""Notes of what runs, so that a new life of the host can end what an old one left, and nobody else.

A process is known again by its number, the moment it began and the boot of the machine: a number alone may be a stranger's by now.
The kernel ends engines with their host; this is for those that it did not.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from shared.processes.tree import text_of

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
TERM_S = 5.0
POLL_S = 0.05
_STARTED_FIELD = 19
"""Of /proc/PID/stat, counted behind the name: when it began, in ticks since the boot."""


class Note(msgspec.Struct, frozen=True):
    """One process that was started."""

    pid: int
    began: str
    boot: str


class Notes:
    """A folder with a file for each replica that runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._boot = text_of(BOOT_ID).strip()

    def write(self, name: str, pid: int) -> None:
        """Note that a replica runs as this process. Raises `OSError`."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        note = Note(pid, _began(pid), self._boot)
        (self._folder / f"{name}.json").write_bytes(msgspec.json.encode(note))

    def remove(self, name: str) -> None:
        """Note that it does not run any more."""
        with suppress(OSError):
            (self._folder / f"{name}.json").unlink(missing_ok=True)

    def end_left(self) -> list[str]:
        """End what an earlier life left; return the names. Blocks up to `TERM_S` where something is left."""
        ended = []
        for file in sorted(self._folder.glob("*.json")):
            with suppress(OSError, msgspec.DecodeError):
                note = msgspec.json.decode(file.read_bytes(), type=Note)
                if self._end(note):
                    ended.append(file.stem)
            self.remove(file.stem)
        return ended

    def _end(self, note: Note) -> bool:
        """End a process if it is the one of the note; return whether it was. A handle on it first: its number cannot change hands then."""
        try:
            handle = os.pidfd_open(note.pid)
        except OSError:
            return False
        with closing(os.fdopen(handle)):
            if note.boot != self._boot or not note.began or note.began != _began(note.pid):
                return False
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, number)
                end_s = time.monotonic() + TERM_S
                while _began(note.pid) == note.began and time.monotonic() < end_s:
                    time.sleep(POLL_S)
        return True


def _began(pid: int) -> str:
    """Return when a process began; empty where it is gone or a zombie."""
    fields = text_of(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return fields[_STARTED_FIELD] if len(fields) > _STARTED_FIELD and fields[0] != "Z" else ""
