"""Which boot of the kernel this process runs under: processes of one boot share a monotonic clock."""

from __future__ import annotations

from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the boot's id; empty where the kernel tells none, and then no clock counts as shared."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
