"""The folder of a mirror: namespaces in folders of their own, and a marker that says whether the machine went down without a word.

Touches nothing in the folder that is not the store's own. Never makes the folder's parent: a mount that vanished must not
become a folder on the disk below it.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import lmdb
import msgspec

from services.kvstore.lifecycle import Trouble
from shared.boot import boot_id

MARKER = "headrace-kv.json"
FULL_BYTES = 4 << 20
_NAMESPACE = re.compile(r"[0-9a-f]{32}")
_BY_NUMBER = {
    errno.ENOSPC: Trouble.FULL,
    errno.EDQUOT: Trouble.FULL,
    errno.EFBIG: Trouble.FULL,
    errno.EROFS: Trouble.READ_ONLY,
    errno.EACCES: Trouble.READ_ONLY,
    errno.EPERM: Trouble.READ_ONLY,
    errno.ENOENT: Trouble.VANISHED,
    errno.ESTALE: Trouble.VANISHED,
    errno.ENOTDIR: Trouble.VANISHED,
}


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """Who used the folder last."""

    boot: str
    clean: bool
    """Whether all was synced when it ended."""


def prepare(folder: Path) -> None:
    """Make the folder where its parent is there. Raises `OSError`."""
    folder.mkdir(mode=0o700, exist_ok=True)


def namespaces(folder: Path) -> list[Path]:
    """Return the namespaces' folders."""
    return sorted(path for path in folder.iterdir() if _NAMESPACE.fullmatch(path.name))


def remove(path: Path) -> None:
    """Delete a namespace. Raises `OSError`."""
    shutil.rmtree(path)


def empty(folder: Path) -> None:
    """Delete all that is the store's. Raises `OSError`."""
    for path in namespaces(folder):
        remove(path)
    (folder / MARKER).unlink(missing_ok=True)


def must_check(folder: Path) -> bool:
    """Return whether files may be there that a power cut left half-written."""
    try:
        marker = msgspec.json.decode((folder / MARKER).read_bytes(), type=Marker)
    except (FileNotFoundError, msgspec.DecodeError):
        return True
    return not (marker.clean or (marker.boot and marker.boot == boot_id()))


def mark(folder: Path, *, clean: bool) -> None:
    """Note that the folder is in use, or that all of it is on the disk. Raises `OSError`."""
    path = folder / MARKER
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, msgspec.json.encode(Marker(boot=boot_id(), clean=clean)))
        os.fsync(fd)
    finally:
        os.close(fd)


def trouble_of(error: Exception) -> Trouble:
    """Return what an error of LMDB or the system means for the mirror."""
    number = error.errno if isinstance(error, OSError) else _number_in(str(error))
    if number is not None:
        return _BY_NUMBER.get(number, Trouble.IO)
    if isinstance(error, lmdb.DiskError):
        return Trouble.FULL
    if isinstance(error, lmdb.ReadonlyError | lmdb.LockError):
        return Trouble.READ_ONLY
    return Trouble.DAMAGED


def is_full(folder: Path) -> bool:
    """Return whether the disk has next to nothing left: LMDB calls a write that was cut short for it an I/O error."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < FULL_BYTES


def _number_in(text: str) -> int | None:
    """Return the system's error that LMDB's text ends with; its own errors (damage) are none."""
    return next((n for n, words in _words() if text.endswith(words)), None)


def _words() -> Iterator[tuple[int, str]]:
    for number in errno.errorcode:
        yield number, os.strerror(number)
