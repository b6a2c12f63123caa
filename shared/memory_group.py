"""The cgroup (version 1 or 2) that our memory counts in: how much it holds, what it may hold, how often the kernel killed in it."""

from __future__ import annotations

from pathlib import Path

import msgspec

_ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT_BYTES = 1 << 60
"""Version 1 writes a number near 2**63 where there is no limit."""


class MemoryGroup(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernel says now."""

    used_bytes: int = 0
    """0: not known."""
    limit_bytes: int = 0
    """0: none, or not known."""
    oom_kills: int = -1
    """Processes killed for lack of memory, in the cgroup or, where it does not tell, on the whole host. -1: not known."""


def memory_group() -> MemoryGroup:
    """Return the memory of our own cgroup. Reads a few files of the kernel; what is missing is left at its default."""
    version_1, folder = _folder()
    if version_1:
        used, limit, events = "memory.usage_in_bytes", "memory.limit_in_bytes", "memory.oom_control"
    else:
        used, limit, events = "memory.current", "memory.max", "memory.events"
    limit_bytes = _number(folder / limit)
    kills = _count(folder / events)
    return MemoryGroup(
        used_bytes=max(0, _number(folder / used)),
        limit_bytes=limit_bytes if 0 < limit_bytes < _NO_LIMIT_BYTES else 0,
        oom_kills=_count(Path("/proc/vmstat")) if kills < 0 else kills,
    )


def _folder() -> tuple[bool, Path]:
    """Return whether it is version 1, and the folder. In a container the path is the host's and not there: then the root is ours."""
    for line in _lines(Path("/proc/self/cgroup")):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            return True, _own(_ROOT / "memory", path, "memory.usage_in_bytes")
        if not controllers and (_ROOT / "cgroup.controllers").exists():
            return False, _own(_ROOT, path, "memory.current")
    return False, _ROOT


def _own(root: Path, path: str, file: str) -> Path:
    folder = root / path.lstrip("/")
    return folder if (folder / file).exists() else root


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _number(path: Path) -> int:
    """Return the file's number; -1 where there is none ("max")."""
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else -1


def _count(path: Path) -> int:
    for line in _lines(path):
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return -1
