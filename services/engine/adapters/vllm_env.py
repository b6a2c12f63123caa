"""What vLLM and its libraries take from the environment: here is it set, nowhere else, and before they are imported.

The engine's settings stay in `services.engine.settings`; these are switches that vLLM and torch offer as variables only.
A variable that the process was started with wins, but for those that belong to one start of an engine.
"""
# ruff: noqa: TID251 - libraries that read the environment leave no other way

from __future__ import annotations

import os
from pathlib import Path

BEFORE_IMPORT = {
    # A model is a local directory: nobody asks a hub, at no start.
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # vLLM's own lines: what matters only, and where all logs go.
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    # The processes of an engine meet on loopback.
    "VLLM_HOST_IP": "127.0.0.1",
    # numpy's thread pool would start at import; a process with threads should not fork, and the engine's mathematics is torch's.
    "OPENBLAS_NUM_THREADS": "1",
}
_START_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
_SOCKET_FOLDER = "VLLM_RPC_BASE_PATH"


def prepare() -> None:
    """Set what must be there before vLLM, torch and numpy are imported. A second call changes nothing."""
    for name, value in BEFORE_IMPORT.items():
        os.environ.setdefault(name, value)


def fork_core() -> None:
    """Have vLLM fork its core. Called after its configuration is made, since the CPU platform sets `spawn` there."""
    os.environ[_START_METHOD] = "fork"


def meet_in(folder: Path) -> None:
    """Have vLLM's processes make the files by which they find each other in this folder."""
    os.environ[_SOCKET_FOLDER] = str(folder)


def meeting_place() -> Path:
    """Return the folder that `meet_in` chose, in any process of the engine."""
    return Path(os.environ[_SOCKET_FOLDER])
