"""What a model's files contain, in a few characters: two folders with the same weights have the same fingerprint, whatever they are called.

Every byte counts: a model that was tuned in one small tensor has other KV blocks, and the wrong ones would be wrong words.
Reading goes on beside the loading of the model, which needs the same pages; until it is done, the engine has no store.
XXH3 with 128 bits: whoever could forge weights to collide could as well write into the folder.
"""

from __future__ import annotations

import os
from pathlib import Path

from xxhash import xxh3_128

PIECE = 8 << 20
"""Read at one go; the interpreter's lock is free meanwhile."""
WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf"}
OTHERS = {".json", ".model"}
"""Configuration, and the tables of tokens: another tokenizer means other text, not other blocks, but nobody wants to rely on that."""


def fingerprint(model: Path) -> str:
    """Return the fingerprint. Raises `OSError`, `ValueError` where the folder holds no weights."""
    files = sorted(
        (path for path in model.iterdir() if path.suffix in WEIGHTS | OTHERS and path.is_file()),
        key=lambda path: path.name,
    )
    if not any(path.suffix in WEIGHTS and path.stat().st_size for path in files):
        raise ValueError(f"{model} holds no weights")
    whole = xxh3_128()
    buffer = memoryview(bytearray(PIECE))
    for path in files:
        size, digest = _digest(path, buffer)
        whole.update(f"{path.name}\0{size}\0{digest}\n".encode())
    return whole.hexdigest()


def _digest(path: Path, buffer: memoryview) -> tuple[int, str]:
    """Return how many bytes a file has, and their digest."""
    of_file = xxh3_128()
    size = 0
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while count := os.readv(fd, [buffer]):
            of_file.update(buffer[:count])
            size += count
    finally:
        os.close(fd)
    return size, of_file.hexdigest()
