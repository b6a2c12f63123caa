"""The file of an engine's black box: mapped into memory, so that what was written is there after any end of this process.

All its blocks are allocated before the first write, since a store into a map on a full disk ends the process (SIGBUS).
"""

from __future__ import annotations

import fcntl
import mmap
import os
from pathlib import Path

from typing_extensions import override

from shared.blackbox.layout import SIZE_BYTES, Identity, Writer
from shared.blackbox.shelf import box_path


class BoxFile:
    """A box that this process holds: whoever looks for those of dead engines leaves it alone."""

    def __init__(self, path: Path, file: int) -> None:
        """Take over an open, empty, locked file. Raises `OSError` where the disk has no room."""
        os.posix_fallocate(file, 0, SIZE_BYTES)
        self.path = path
        self._file = file
        self._map = mmap.mmap(file, SIZE_BYTES)

    @override
    def __repr__(self) -> str:
        return f"<BoxFile {self.path}>"

    @classmethod
    def create(cls, folder: Path, identity: Identity) -> tuple[BoxFile, Writer]:
        """Begin a box. Raises `OSError`: no such folder, no right, no room."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = box_path(folder, identity.engine)
        # Not inherited by processes that this one executes. Forked ones have it and do not hold its lock.
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            box = cls(path, file)
        except OSError:
            path.unlink(missing_ok=True)
            os.close(file)
            raise
        return box, Writer(box._map, identity)

    def remove(self) -> None:
        """Delete the box: this process ends as it should. Nothing may be written after this."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Let go of the box, so that others may keep it; the end of this process does the same."""
        self._map.close()
        os.close(self._file)
