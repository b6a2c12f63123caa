"""The folders of black boxes: finds those whose engine is gone, keeps what they say as readable files, a bounded number of them.

A living engine holds a POSIX lock on its box, which the kernel lets go at its end, whatever that was; a process number would say little
among containers. Blocks for a few milliseconds: a box is half a MiB.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from shared.blackbox.layout import SIZE_BYTES, Identity, decode
from shared.blackbox.report import Ending, Report, report
from shared.errors import UserError
from shared.messages import BlackBox

SUFFIX = ".box"
MAX_KEPT = 50
"""Reports on the shelf; the oldest goes first. One takes a few hundred KiB at most."""

M = TypeVar("M", bound=BlackBox)
HowEnded = Callable[[Identity], Ending]


class Kept(msgspec.Struct, frozen=True):
    """A report that was put on the shelf."""

    report: Report
    path: Path

    def told(self, kind: type[M], *, host: str) -> M:
        """Return the message that says so; `host` is the keeper's."""
        said = self.report
        return kind(
            engine=said.engine,
            service=said.service,
            path=str(self.path),
            host=host,
            cause=said.cause,
            last_step=said.last_step,
            rss_bytes=said.rss_bytes,
            free_blocks=said.free_blocks,
            unix_s=said.last_unix_s,
        )


def box_path(folder: Path, engine: str) -> Path:
    """Return where an engine's box is while it lives."""
    return folder / f"{engine}{SUFFIX}"


def keep_left(live: Path, shelf: Path, how_ended: HowEnded) -> list[Kept]:
    """Put the boxes in `live` that no engine holds any more on the shelf, and remove them there.

    Two who do this at the same time get each box once between them. Raises `OSError`; what was not kept then stays where it is.
    """
    kept = []
    for path in sorted(live.glob(f"*{SUFFIX}")):
        one = _keep(path, shelf, how_ended)
        if one is not None:
            kept.append(one)
    return kept


def drop_left(live: Path) -> None:
    """Remove the boxes that no engine holds any more: somebody ended their engines on purpose."""
    for path in live.glob(f"*{SUFFIX}"):
        with suppress(OSError), path.open("rb+") as file:
            if _is_left(file.fileno(), path):
                path.unlink()


def reports(shelf: Path) -> list[Path]:
    """Return what is on the shelf, the newest first."""
    return sorted(shelf.glob("*.json"), key=_age_key, reverse=True)


def read(path: Path) -> Report:
    """Return a kept report. Raises `UserError`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise UserError(f"{path} is no report of a black box: {error}") from error


def _keep(path: Path, shelf: Path, how_ended: HowEnded) -> Kept | None:
    try:
        file = path.open("rb+")
    except FileNotFoundError:  # another keeper was quicker
        return None
    with file:
        if not _is_left(file.fileno(), path):
            return None
        data = file.read(SIZE_BYTES)
        if not data:  # it was made this moment, and is about to be held
            return None
        box = decode(data)
        said = report(box, how_ended(box.identity)) if box.identity is not None else None
        target = shelf / f"{path.stem}.json"
        if said is not None:
            _write(target, msgspec.json.format(msgspec.json.encode(said), indent=1))
            for old in reports(shelf)[MAX_KEPT:]:
                old.unlink(missing_ok=True)
        path.unlink()
        return Kept(said, target) if said is not None else None


def _is_left(file: int, path: Path) -> bool:
    """Return whether nobody holds this box; then we do, until the file is closed."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file), path.stat())
    except (BlockingIOError, PermissionError, FileNotFoundError):
        return False


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, for its owner only."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_bytes(data)
    new.replace(path)


def _age_key(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
