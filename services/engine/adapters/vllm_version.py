"""The versions of vLLM that were tried."""

from __future__ import annotations

import re

from services.engine.ports import EngineFailedError

FIRST_VERSION = (0, 32)
END_VERSION = (0, 34)
"""The first one that is not supported."""


def check_version(version: str) -> None:
    """Raise `EngineFailedError` where the version of vLLM is one that nobody has tried."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and FIRST_VERSION <= (int(numbers[1]), int(numbers[2])) < END_VERSION:
        return
    first, end = (".".join(map(str, each)) for each in (FIRST_VERSION, END_VERSION))
    raise EngineFailedError(f"vLLM {version} is installed; install vllm >={first},<{end}")
