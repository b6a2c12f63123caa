"""What a model's files contain, in a few characters: two folders with the same weights have the same fingerprint, whatever they are called.

Up to `BUDGET` bytes of weights are read as they are. Of more, evenly spaced pieces are, so that a tensor of some megabytes is always met,
and the tables at the beginning of the files. Reading goes on beside the loading of the model, which needs the same pages.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

BUDGET = 512 << 20
"""Bytes of weights that are read, at 1 to 2 GB/s."""
PIECE = 64 << 10
HEAD = 1 << 20
"""Of each file the beginning is read as a whole: safetensors and GGUF have their tables there."""
WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf"}
OTHERS = {".json", ".model"}
"""Configuration, and the tables of tokens: another tokenizer means other text, not other blocks, but nobody wants to rely on that."""


def fingerprint(model: Path, *, budget: int = BUDGET) -> str:
    """Return the fingerprint. Raises `OSError`, `ValueError` where the folder holds no weights."""
    files = sorted(
        (path for path in model.iterdir() if path.suffix in WEIGHTS | OTHERS and path.is_file()),
        key=lambda path: path.name,
    )
    weights = [path for path in files if path.suffix in WEIGHTS]
    total = sum(path.stat().st_size for path in weights)
    if not total:
        raise ValueError(f"{model} holds no weights")
    stride = max(PIECE, -(-total // max(1, budget // PIECE)))
    whole = hashlib.sha256()
    for path in files:
        of_file = hashlib.sha256()
        size = path.stat().st_size
        step = stride if path in weights and total > budget else 0
        _read(path, of_file, size, step)
        whole.update(f"{path.name}\0{size}\0{of_file.hexdigest()}\n".encode())
    return whole.hexdigest()


def _read(path: Path, into: hashlib._Hash, size: int, step: int) -> None:
    """Read all of a file, or its head and a piece each `step`."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        at = 0
        while at < size:
            piece = os.pread(fd, HEAD if not step or at == 0 else PIECE, at)
            if not piece:
                raise OSError(f"{path} ended at {at} of {size} bytes")
            into.update(piece)
            at = at + len(piece) if not step else max(at + step, len(piece))
    finally:
        os.close(fd)
