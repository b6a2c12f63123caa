"""Where the KV store of a platform keeps its blocks and listens. Raises `UserError` with what to change."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from shared.errors import UserError
from shared.kv.seqpacket import MAX_PATH_BYTES

MAX_FOLDERS = 2


def folders(chosen: Sequence[str], *, default: Path) -> list[Path]:
    """Return one or two folders. The store makes each where its parent is there: a disk that is not mounted must not fill another."""
    if len(chosen) > MAX_FOLDERS:
        raise UserError(
            f"--kv-folder is given {len(chosen)} times", hint="once, or twice for two disks"
        )
    found = [Path(folder).resolve() for folder in chosen] or [default.resolve() / "kv"]
    if len(set(found)) != len(found):
        raise UserError("--kv-folder names the same folder twice", hint="mirrors are on two disks")
    for folder in found:
        if not folder.parent.is_dir():
            raise UserError(
                f"there is no folder {folder.parent} for --kv-folder {folder}",
                hint="make it, or mount its disk",
            )
    return found


def free_bytes(found: Sequence[Path]) -> int:
    """Return what the fuller disk has left."""
    return min(shutil.disk_usage(folder.parent).free for folder in found)


def socket_path(platform: Path) -> Path:
    """Return where the store listens: in the platform's folder, or in a short one of this user's where that path is too long."""
    socket = platform.resolve() / "kv.sock"
    if len(os.fsencode(socket)) <= MAX_PATH_BYTES:
        return socket
    name = hashlib.sha256(os.fsencode(platform)).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}-{name}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
        raise UserError(
            f"{folder} can be used by others",
            hint="remove it, or set HEADRACE_HOME to a shorter path",
        )
    return folder / "kv.sock"
