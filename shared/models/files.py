"""What can be said about a model directory in HF layout from its files alone, before minutes are spent on loading it.

Reads config, tokenizer names and the headers of the weights; never the weights themselves, and imports no model library.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from shared.errors import UserError

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "tekken.json",
    "tokenizer.model.v3",
    "vocab.txt",
)
CONTEXT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
    "model_max_length",
)
"""Names that model families give their context length, in the order vLLM trusts them."""
DTYPES = {
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F8_E4M3": "float8",
    "F8_E5M2": "float8",
    "U8": "uint8",
    "I32": "int32",
}
HEADER_LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""Bound of a safetensors header in the format's own reader."""
LFS_POINTER = b"version https://git-lfs"


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the files say."""

    architecture: str
    """First of the config's architectures; `?` where it names none."""
    dtype: str
    """Type of the weights; `?` where neither config nor header tells."""
    context_tokens: int | None
    """Context length the model was made for, if its config tells."""
    weight_bytes: int
    """Size of all weight files: what loading needs in memory at least, in the type of the files."""


class WeightFile(msgspec.Struct, frozen=True, kw_only=True):
    """A safetensors file whose header fits its size."""

    file_bytes: int
    dtype: str


def inspect_model(path: Path) -> ModelFacts:
    """Return the facts of a directory that looks loadable. Raises `UserError` naming the first thing that is wrong and its remedy."""
    if path.is_file():
        raise UserError(
            f"{path} is a file",
            hint="give the directory in HF layout that holds config.json and *.safetensors",
        )
    if not path.is_dir():
        raise UserError(f"there is no model directory {path}")
    config = _read_json(
        path / CONFIG,
        "the directory is not in HF layout; a model's config.json stands beside its weights",
    )
    if not any((path / name).is_file() for name in TOKENIZERS):
        raise UserError(
            f"{path} has no tokenizer",
            hint=f"one of {', '.join(TOKENIZERS[:4])} belongs beside config.json",
        )
    weights = [read_header(file) for file in _weight_files(path)]
    others = [] if weights else _other_weights(path)
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else {}
    sources = (config, text or {})
    architectures = config.get("architectures") or ["?"]
    return ModelFacts(
        architecture=str(architectures[0]),
        dtype=_first(sources, ("dtype", "torch_dtype")) or (weights[0].dtype if weights else "?"),
        context_tokens=next(
            (c[k] for c in sources for k in CONTEXT_KEYS if isinstance(c.get(k), int)), None
        ),
        weight_bytes=sum(file.file_bytes for file in weights)
        + sum(file.stat().st_size for file in others),
    )


def read_header(file: Path) -> WeightFile:
    """Check a safetensors file's own account of its length against its size. Raises `UserError` where it is cut off."""
    file_bytes = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(HEADER_LENGTH_BYTES)
        header_bytes = int.from_bytes(start, "little")
        if (start + stream.read(len(LFS_POINTER))).startswith(LFS_POINTER):
            raise UserError(
                f"{file} is a Git LFS pointer, not the weights",
                hint=f"run `git lfs pull` in {file.parent}",
            )
        if file_bytes < HEADER_LENGTH_BYTES or header_bytes > min(
            file_bytes - HEADER_LENGTH_BYTES, MAX_HEADER_BYTES
        ):
            raise _broken(file, f"its header would end beyond the file's {file_bytes:,} bytes")
        stream.seek(HEADER_LENGTH_BYTES)
        header = _parse_header(file, stream.read(header_bytes))
    tensors = [entry for name, entry in header.items() if name != "__metadata__"]
    try:
        data_bytes = max((int(entry["data_offsets"][1]) for entry in tensors), default=0)
        kinds = [str(entry["dtype"]) for entry in tensors]
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise _broken(file, f"an entry of its header has no {error}") from error
    wanted_bytes = HEADER_LENGTH_BYTES + header_bytes + data_bytes
    if wanted_bytes != file_bytes:
        raise _broken(file, f"it has {file_bytes:,} of {wanted_bytes:,} bytes")
    # The most common type: norms and scales are often kept in another one than the matrices.
    common = max(set(kinds), key=kinds.count) if kinds else "?"
    return WeightFile(file_bytes=file_bytes, dtype=DTYPES.get(common, common.lower()))


def _weight_files(path: Path) -> list[Path]:
    """Return the safetensors files; where there is an index, exactly those that it names."""
    if not (path / INDEX).is_file():
        return sorted(path.glob("*.safetensors"))
    shards = _read_json(path / INDEX, "download the model again").get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise UserError(f"{path / INDEX} names no weights", hint="download the model again")
    files = sorted({path / str(name) for name in shards.values()})
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise UserError(
            f"{path} lacks {len(missing)} of {len(files)} weight files: {', '.join(missing[:3])}",
            hint="download the rest",
        )
    return files


def _other_weights(path: Path) -> list[Path]:
    """Return PyTorch's own files where there are no safetensors. Raises `UserError` where there are no weights at all."""
    files = sorted(path.glob("pytorch_model*.bin"))
    if files and all(file.stat().st_size for file in files):
        return files
    if any(path.glob("*.gguf")):
        raise UserError(
            f"{path} has its weights as GGUF only", hint="give a directory with *.safetensors"
        )
    raise UserError(
        f"{path} has no weights",
        hint="*.safetensors belong beside config.json; download the model again",
    )


def _read_json(file: Path, hint: str) -> dict[str, Any]:
    if not file.is_file():
        raise UserError(f"{file.parent} has no {file.name}", hint=hint)
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"{file} cannot be read: {error}", hint="download the model again"
        ) from error
    if not isinstance(content, dict):
        raise UserError(f"{file} is not a JSON object", hint="download the model again")
    return content


def _parse_header(file: Path, raw: bytes) -> dict[str, Any]:
    try:
        header = json.loads(raw)
    except ValueError as error:
        raise _broken(file, f"its header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise _broken(file, "its header is not a JSON object")
    return header


def _broken(file: Path, reason: str) -> UserError:
    return UserError(
        f"{file} is damaged or cut off: {reason}",
        hint="download it again; a fetched one: `headrace model fetch`",
    )


def _first(sources: tuple[dict[str, Any], ...], keys: tuple[str, ...]) -> str | None:
    return next((str(source[key]) for source in sources for key in keys if source.get(key)), None)
