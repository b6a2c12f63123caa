"""What a replica's processes may take, held from outside: cores by affinity, memory by looking.

RLIMIT_AS would be wrong for vLLM, which maps far more than it uses. Without a memory cgroup of our own to give, a process can take
too much for as long as two looks are apart; then it is killed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from shared.processes.tree import below, entries, text_of

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
LOOK_S = 0.5


def pin(pid: int, cores: Sequence[int]) -> None:
    """Let a process that has just begun, and all that it will start, run on these cores only; none named: on any. Raises `OSError`."""
    if not cores:
        return
    for task in entries(Path(f"/proc/{pid}/task")):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), cores)


def memory_bytes(pid: int, *, limit_bytes: int) -> int:
    """Return what a process and those below it hold in memory.

    Shared pages count once: exactly where the plain sum is beyond the limit, since the exact count is slow; else that sum.
    """
    pids = [pid, *below(pid)]
    resident = sum(_resident(each) for each in pids)
    return resident if resident <= limit_bytes else sum(_share(each) for each in pids)


def _resident(pid: int) -> int:
    pages = text_of(Path(f"/proc/{pid}/statm")).split()
    return int(pages[1]) * PAGE_BYTES if len(pages) > 1 else 0


def _share(pid: int) -> int:
    """Return a process's share of the pages that it maps, those swapped out too."""
    lines = text_of(Path(f"/proc/{pid}/smaps_rollup")).splitlines()
    found = {line.split()[0]: int(line.split()[1]) for line in lines[1:] if line.endswith(" kB")}
    if "Pss:" not in found:
        return _resident(pid)
    return (found["Pss:"] + found.get("SwapPss:", 0)) * 1024
