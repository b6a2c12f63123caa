"""The folder of models: what is there, whether it is what was put there, and which directory a name or path means.

A fetched model has a manifest with the checksum of every file; a directory that somebody put here by hand has none and is served as well.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from pathlib import Path

import msgspec

from shared.errors import UserError
from shared.models.files import ModelFacts, inspect_model

MANIFEST = "headrace-model.json"
HASH_CHUNK_BYTES = 1 << 20


class ChecksumState(StrEnum):
    """How far a model's files are known to be those that were fetched."""

    VERIFIED = "verified"
    """Every file was read and has its checksum."""
    SIZES_MATCH = "sizes match"
    """Every file has its size; the content was not read."""
    CHANGED = "changed"
    """A file is missing, or has another size or content."""
    UNKNOWN = "no manifest"
    """Not fetched by Headrace."""


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a fetched model."""

    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model came from and what it consists of; `MANIFEST` in its directory."""

    source: str
    """File that it was made from."""
    source_sha256: str
    dtype: str
    sampling: dict[str, float] = {}
    """What the model does where a request names no sampling, as far as the recipe says; it stands in `GENERATION`."""
    files: dict[str, FileRecord]


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """One model directory."""

    name: str
    path: Path
    facts: ModelFacts | None
    """None where the directory would not load; `problem` says why."""
    problem: str
    checksum: ChecksumState

    @property
    def weight_bytes(self) -> int:
        """Size of the weight files; 0 where they are broken."""
        return self.facts.weight_bytes if self.facts else 0


def sha256_of(file: Path) -> str:
    """Return the checksum of a file's content."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(HASH_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def record_files(directory: Path) -> dict[str, FileRecord]:
    """Return size and checksum of every file in a directory, except the manifest."""
    files = sorted(
        file for file in directory.rglob("*") if file.is_file() and file.name != MANIFEST
    )
    return {
        str(file.relative_to(directory)): FileRecord(
            bytes=file.stat().st_size, sha256=sha256_of(file)
        )
        for file in files
    }


def read_manifest(directory: Path) -> Manifest | None:
    """Return the manifest, or none where there is none or it cannot be read: the files then count as unknown."""
    try:
        return msgspec.json.decode((directory / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError):
        return None


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Put the manifest into a directory that nobody reads yet."""
    (directory / MANIFEST).write_bytes(
        msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
    )


def check_files(directory: Path, *, read_content: bool) -> ChecksumState:
    """Compare a directory with its manifest; `read_content` reads every byte, about a second for each GB."""
    manifest = read_manifest(directory)
    if manifest is None:
        return ChecksumState.UNKNOWN
    for name, record in manifest.files.items():
        file = directory / name
        if not file.is_file() or file.stat().st_size != record.bytes:
            return ChecksumState.CHANGED
        if read_content and sha256_of(file) != record.sha256:
            return ChecksumState.CHANGED
    return ChecksumState.VERIFIED if read_content else ChecksumState.SIZES_MATCH


def describe(directory: Path, *, read_content: bool) -> Model:
    """Return what is known about one directory; a broken one is described too."""
    facts, problem = None, ""
    try:
        facts = inspect_model(directory)
    except UserError as error:
        problem = str(error)
    checksum = check_files(directory, read_content=read_content)
    return Model(
        name=directory.name, path=directory, facts=facts, problem=problem, checksum=checksum
    )


def list_models(models: Path, *, read_content: bool = False) -> list[Model]:
    """Return the models of the folder `models` by name, broken ones too; none where the folder is not there yet."""
    if not models.is_dir():
        return []
    directories = [
        entry for entry in models.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    ]
    return [describe(directory, read_content=read_content) for directory in sorted(directories)]


def resolve(name_or_path: str, models: Path) -> Model:
    """Return the model that a name in the folder `models`, or any path, means. Raises `UserError` where it would not load."""
    directory = directory_of(name_or_path, models)
    facts = inspect_model(directory)
    checksum = check_files(directory, read_content=False)
    if checksum is ChecksumState.CHANGED:
        raise UserError(
            f"{directory} is not what was fetched: a file is missing or has another size",
            hint=f"run `headrace model fetch {directory.name}`",
        )
    return Model(name=directory.name, path=directory, facts=facts, problem="", checksum=checksum)


def directory_of(name_or_path: str, models: Path) -> Path:
    """Return the directory that a name in the folder `models`, or any path, means. Raises `UserError` where there is none.

    Names win over paths where there are no slashes, so that a folder in the way where one stands changes nothing.
    """
    is_name = "/" not in name_or_path and name_or_path not in {"", ".", ".."}
    if is_name and (models / name_or_path).is_dir():
        return models / name_or_path
    directory = Path(name_or_path).expanduser().absolute()
    if name_or_path and directory.exists():
        return directory
    known = ", ".join(model.name for model in list_models(models)) or "none yet"
    if is_name:
        raise UserError(
            f"no model is called {name_or_path!r}",
            hint=f"here: {known}; `headrace model fetch smollm2` makes the default one",
        )
    raise UserError(
        f"there is no directory {name_or_path}",
        hint="a model of a hub is downloaded first, into a directory: `hf download ORGANISATION/NAME --local-dir DIR`",
    )
