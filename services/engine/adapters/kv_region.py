"""The file in memory that L2 is: it has a name only until everybody who copies has mapped it, so that no way to die leaves it behind.

vLLM makes the file. Where an engine is killed in the second between its making and its unlinking, the next engine of the host removes it:
the file is locked by whoever mapped it, and that lock ends with the process, whichever container it was in.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from pathlib import Path
from uuid import uuid4

from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

FOLDER = Path("/dev/shm")  # noqa: S108 - where vLLM makes it
_PREFIX = "headrace-"
_OURS = f"vllm_offload_{_PREFIX}*.mmap"
YOUNG_S = 60.0
"""A younger file may be one that is being made, and not locked yet."""


def free_bytes() -> int:
    """Return how much memory such a file can have."""
    return shutil.disk_usage(FOLDER).free


def new_engine_id() -> str:
    """Return the name by which vLLM calls the file: ours to know it by, and never used twice."""
    return f"{_PREFIX}{uuid4().hex}"


def hold(region: SharedOffloadRegion) -> None:
    """Lock the file for as long as this worker has it, and leave its name to the scheduler."""
    _lock(region)
    region._creator = False  # noqa: SLF001 - vLLM's own way to say that the name is gone


def hold_last(region: SharedOffloadRegion) -> None:
    """The same in the scheduler, which maps the file when all workers have: remove the name. Where it made the file, they come later."""
    _lock(region)
    if not region._creator:  # noqa: SLF001 - see above
        Path(region.mmap_path).unlink(missing_ok=True)


def _lock(region: SharedOffloadRegion) -> None:
    assert region.fd is not None
    fcntl.flock(region.fd, fcntl.LOCK_SH)


def remove_stale(folder: Path = FOLDER, *, young_s: float = YOUNG_S) -> list[str]:
    """Remove what engines left that were killed while they started; return the names. Never raises."""
    removed = []
    for path in folder.glob(_OURS):
        with contextlib.suppress(OSError):
            if _is_stale(path, young_s):
                path.unlink()
                removed.append(path.name)
    return removed


def _is_stale(path: Path, young_s: float) -> bool:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        # A file's time is wall-clock time.
        if time.time() - os.fstat(fd).st_ctime < young_s:  # noqa: TID251
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True
