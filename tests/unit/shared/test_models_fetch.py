"""Making the default model: every refusal names its remedy, and what stood there before stays until the new one is whole."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from shared.errors import UserError
from shared.models import fetch as model_fetch
from shared.models.fetch import RECIPES, fetch, find_or_fetch
from shared.models.store import (
    MANIFEST,
    ChecksumState,
    check_files,
    read_manifest,
    write_manifest,
)
from shared.settings import environment
from tests.unit.shared.test_models_store import put_model

SMOLLM2 = RECIPES["smollm2"]


def silent(_: str) -> None:
    """Nobody watches."""


@pytest.fixture
def package(tmp_path: Path) -> str:
    """An importable package without the model's file; running its code would fail."""
    folder = tmp_path / "packages" / "no_weights_here"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('a plugin host was imported')\n")
    sys.path.insert(0, str(folder.parent))
    yield folder.name
    sys.path.remove(str(folder.parent))


def test_an_unknown_name_is_told_what_there_is(tmp_path):
    with pytest.raises(UserError, match="no recipe") as caught:
        asyncio.run(fetch("gpt-9", tmp_path, env={}, progress=silent))

    assert "smollm2" in caught.value.hint


def test_a_directory_of_somebody_else_is_not_overwritten(tmp_path):
    put_model(tmp_path, "smollm2", fetched=False)

    with pytest.raises(UserError, match="was not made by"):
        asyncio.run(fetch("smollm2", tmp_path, env={}, progress=silent))


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(UserError, match="cannot be made") as caught:
        asyncio.run(fetch("smollm2", tmp_path / "file" / "models", env={}, progress=silent))

    assert "HEADRACE_HOME" in caught.value.hint


def test_a_missing_package_is_told(tmp_path):
    recipe = msgspec.structs.replace(SMOLLM2, package="no_such_package_here")

    with pytest.raises(UserError, match="not installed"):
        model_fetch._checked_source(recipe, silent)


def test_a_package_without_the_file_is_told_and_never_run(package):
    recipe = msgspec.structs.replace(SMOLLM2, package=package)

    with pytest.raises(UserError, match="not installed"):
        model_fetch._checked_source(recipe, silent)


def test_a_source_with_another_checksum_is_refused():
    recipe = msgspec.structs.replace(SMOLLM2, sha256="0" * 64)

    with pytest.raises(UserError, match="not the pinned one"):
        model_fetch._checked_source(recipe, silent)


def test_a_disk_without_room_is_refused_with_both_figures(tmp_path):
    recipe = msgspec.structs.replace(SMOLLM2, disk_bytes=1 << 60)

    with pytest.raises(UserError, match=r"MiB free and the model needs 1099511627776"):
        model_fetch._check_room(tmp_path, recipe)


def test_a_conversion_that_was_killed_is_called_lack_of_memory(tmp_path):
    error = model_fetch._failure(-9, "", tmp_path, SMOLLM2)

    assert "memory ran out" in str(error)


def test_a_full_disk_is_told_apart_from_other_failures(tmp_path):
    full = model_fetch._failure(1, "OSError: [Errno 28] No space left on device", tmp_path, SMOLLM2)
    other = model_fetch._failure(1, "Traceback\nValueError: no such tensor", tmp_path, SMOLLM2)

    assert "is full" in str(full)
    assert "ValueError: no such tensor" in str(other)


def test_switching_in_replaces_the_old_directory_and_leaves_nothing_else(tmp_path):
    old = put_model(tmp_path, "tiny")
    (old / "stale").write_text("")
    partial = put_model(tmp_path, ".tiny.partial", fetched=False)

    model_fetch._finish(partial, tmp_path / "tiny", SMOLLM2)

    assert ["tiny"] == [entry.name for entry in tmp_path.iterdir()]
    assert not (tmp_path / "tiny" / "stale").exists()
    assert ChecksumState.VERIFIED is check_files(tmp_path / "tiny", read_content=True)


def test_the_recipes_sampling_becomes_the_models_own_default(tmp_path):
    partial = put_model(tmp_path, ".tiny.partial", fetched=False)

    model_fetch._finish(partial, tmp_path / "tiny", SMOLLM2)

    written = json.loads((tmp_path / "tiny" / "generation_config.json").read_text())
    assert {"eos_token_id": 2, "do_sample": True, "temperature": 0.2, "top_p": 0.9} == written


@pytest.mark.parametrize(
    ("changes", "is_wanted"),
    [({}, False), ({"sampling": {"temperature": 1.0}}, True), ({"sha256": "1" * 64}, True)],
    ids=["the same recipe", "other sampling", "another source"],
)
def test_a_model_that_another_recipe_made_is_made_anew(tmp_path, changes, is_wanted):
    partial = put_model(tmp_path, ".tiny.partial", fetched=False)
    model_fetch._finish(partial, tmp_path / "tiny", SMOLLM2)

    recipe = msgspec.structs.replace(SMOLLM2, **changes)

    assert is_wanted is model_fetch._is_wanted(tmp_path / "tiny", recipe)


def test_a_model_from_before_recipes_had_a_sampling_is_made_anew(tmp_path):
    old = put_model(tmp_path, "smollm2")
    manifest = read_manifest(old)
    assert manifest is not None
    write_manifest(old, msgspec.structs.replace(manifest, source_sha256=SMOLLM2.sha256))

    assert model_fetch._is_wanted(old, SMOLLM2)


def test_a_directory_of_somebody_else_is_served_as_it_is(tmp_path):
    put_model(tmp_path, "smollm2", fetched=False)

    model = asyncio.run(find_or_fetch("smollm2", tmp_path, env={}, progress=silent))

    assert ChecksumState.UNKNOWN is model.checksum


def test_a_second_holder_of_the_lock_waits_and_says_so(tmp_path):
    order: list[str] = []

    async def hold(name: str, hold_s: float) -> None:
        async with model_fetch._one_at_a_time(tmp_path / "lock", order.append):
            order.append(name)
            await asyncio.sleep(hold_s)
            order.append(name + " done")

    async def scenario() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(hold("first", 0.1))
            await asyncio.sleep(0)
            group.create_task(hold("second", 0))

    asyncio.run(scenario())

    assert [
        "first",
        "waiting for another fetch of the same model",
        "first done",
        "second",
        "second done",
    ] == order


def test_a_cancelled_conversion_ends_its_process(tmp_path):
    source = tmp_path / "source.gguf"
    source.write_bytes(b"GGUF")
    begun: list[str] = []

    async def scenario() -> None:
        begins = asyncio.Event()

        def note(step: str) -> None:
            begun.append(step)
            begins.set()

        work = model_fetch._convert(source, tmp_path, SMOLLM2, env=environment(), progress=note)
        async with asyncio.TaskGroup() as group:
            converting = group.create_task(work)
            await begins.wait()
            converting.cancel()

    with suppress(asyncio.CancelledError):
        asyncio.run(scenario())

    assert ["loading torch and transformers"] == begun


@pytest.mark.timeout(600)
def test_two_fetches_at_once_make_one_whole_model(model_fetch):
    """On a machine where the model is there already, they find it."""
    path, was_there, steps = model_fetch

    assert steps.count("loading torch and transformers") <= 1
    assert was_there or "loading torch and transformers" in steps
    assert was_there or "waiting for another fetch of the same model" in steps
    assert ChecksumState.VERIFIED is check_files(path, read_content=True)
    assert {"config.json", "tokenizer.json", "chat_template.jinja", MANIFEST} <= {
        file.name for file in path.iterdir()
    }
    assert [] == list(path.parent.glob(".smollm2.partial*"))


def test_a_model_that_was_made_is_found(model_fetch):
    steps: list[str] = []
    model = asyncio.run(
        find_or_fetch("smollm2", model_fetch.path.parent, env={}, progress=steps.append)
    )

    assert "loading torch and transformers" not in steps
    assert model.facts is not None
    assert ("LlamaForCausalLM", "bfloat16", 8192) == (
        model.facts.architecture,
        model.facts.dtype,
        model.facts.context_tokens,
    )
