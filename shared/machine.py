"""What the machine has: free memory, free disk, free ports. Each check raises `UserError` that says what to change."""

from __future__ import annotations

import contextlib
import errno
import shutil
import socket
from pathlib import Path

from shared.errors import UserError

MIN_FREE_DISK_BYTES = 256 << 20
"""Logs and JetStream's files need little; below this every write may fail soon."""
MIB = 1 << 20


def available_memory_bytes() -> int:
    """Return what the kernel says can be used without swapping, within the limit of our memory cgroup."""
    host = _meminfo_available()
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    if limit is None or used is None:
        return host
    return min(host, max(0, limit - used))


def _meminfo_available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 62


def _cgroup(name: str) -> int | None:
    try:
        return int((Path("/sys/fs/cgroup") / name).read_text())
    except (OSError, ValueError):  # no cgroup v2, or no limit ("max")
        return None


def check_port(host: str, port: int, *, what: str, option: str) -> None:
    """Raise `UserError` where somebody already listens there."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise UserError(
                    f"port {port} for {what} is taken on {host}",
                    hint=f"stop what listens there, or choose another with {option}",
                ) from error
            raise UserError(
                f"cannot listen on {host}:{port} for {what}: {error.strerror}"
            ) from error


def free_ports(count: int) -> list[int]:
    """Return loopback ports that were free a moment ago, no two the same."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def check_file(path: str, *, option: str, hint: str) -> None:
    """Raise `UserError` where an option names a file that cannot be read; an empty path is none."""
    if not path:
        return
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise UserError(f"{option} {path} cannot be read: {error.strerror}", hint=hint) from error


def check_disk(folder: Path) -> None:
    """Raise `UserError` where the disk of `folder` is as good as full."""
    free = shutil.disk_usage(folder).free
    if free < MIN_FREE_DISK_BYTES:
        raise UserError(
            f"only {free / MIB:.0f} MiB are free on the disk of {folder}; {MIN_FREE_DISK_BYTES / MIB:.0f} MiB are needed",
            hint="free some, or set HEADRACE_HOME to a folder on another disk",
        )
