"""The GPUs of this machine, as `CUDA_VISIBLE_DEVICES` names them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping

VISIBLE = "CUDA_VISIBLE_DEVICES"
LIST_S = 20.0


def visible_gpus(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return those that the environment allows, else all that the driver's tool lists; none where there is no such tool."""
    if VISIBLE in env:
        return tuple(name.strip() for name in env[VISIBLE].split(",") if name.strip())
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    words = [tool, "--query-gpu=index", "--format=csv,noheader"]
    try:
        listed = subprocess.run(words, capture_output=True, text=True, timeout=LIST_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in listed.stdout.splitlines() if line.strip().isdigit())
