"""The folder of models: listing, checksum states, and which directory a name or a path means."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from shared.errors import UserError
from shared.models.store import (
    ChecksumState,
    Manifest,
    check_files,
    describe,
    list_models,
    record_files,
    resolve,
    write_manifest,
)
from tests.unit.shared.test_models_files import CONFIG, safetensors


def put_model(models: Path, name: str, *, fetched: bool = True) -> Path:
    """A loadable directory, with a manifest when `fetched`."""
    directory = models / name
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    (directory / "generation_config.json").write_text('{"eos_token_id": 2}')
    (directory / "tokenizer.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(safetensors())
    if fetched:
        files = record_files(directory)
        write_manifest(
            directory, Manifest(source="x.gguf", source_sha256="0", dtype="bfloat16", files=files)
        )
    return directory


def test_a_fetched_model_is_verified_by_reading_it(tmp_path):
    directory = put_model(tmp_path, "tiny")

    assert ChecksumState.VERIFIED is check_files(directory, read_content=True)
    assert ChecksumState.SIZES_MATCH is check_files(directory, read_content=False)


def test_a_flipped_bit_is_found_by_reading_only(tmp_path):
    directory = put_model(tmp_path, "tiny")
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")

    assert ChecksumState.CHANGED is check_files(directory, read_content=True)
    assert ChecksumState.SIZES_MATCH is check_files(directory, read_content=False)


@pytest.mark.parametrize("how", ["missing", "longer"])
def test_a_missing_or_longer_file_is_found_without_reading(tmp_path, how):
    directory = put_model(tmp_path, "tiny")
    if how == "missing":
        (directory / "tokenizer.json").unlink()
    else:
        (directory / "tokenizer.json").write_text("{ }")

    assert ChecksumState.CHANGED is check_files(directory, read_content=False)


def test_a_directory_put_there_by_hand_is_served_without_checksums(tmp_path):
    put_model(tmp_path, "own", fetched=False)

    assert ChecksumState.UNKNOWN is resolve("own", tmp_path).checksum


def test_an_unreadable_manifest_counts_as_none(tmp_path):
    directory = put_model(tmp_path, "tiny")
    (directory / "headrace-model.json").write_text("{")

    assert ChecksumState.UNKNOWN is check_files(directory, read_content=False)


def test_listing_shows_broken_models_with_the_reason_and_hides_unfinished_ones(tmp_path):
    put_model(tmp_path, "b")
    (put_model(tmp_path, "a") / "config.json").unlink()
    put_model(tmp_path, ".c.partial")

    first, second = list_models(tmp_path)

    assert ("a", None, 0) == (first.name, first.facts, first.weight_bytes)
    assert "has no config.json" in first.problem
    assert ("b", "", 8192) == (
        second.name,
        second.problem,
        second.facts and second.facts.context_tokens,
    )


def test_no_folder_is_no_models(tmp_path):
    assert [] == list_models(tmp_path / "absent")


def test_a_name_wins_over_a_folder_that_lies_where_one_stands(tmp_path):
    put_model(tmp_path / "models", "tiny")
    (tmp_path / "tiny").mkdir()
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        found = resolve("tiny", tmp_path / "models")
    finally:
        os.chdir(before)

    assert tmp_path / "models" / "tiny" == found.path


def test_a_path_is_taken_as_it_is(tmp_path):
    directory = put_model(tmp_path / "elsewhere", "tiny", fetched=False)

    found = resolve(str(directory), tmp_path / "models")

    assert (directory, "tiny") == (found.path, found.name)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ("absent", "here: tiny"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "hf download"),
        ("/no/such/folder", "no directory"),
        ("", "no directory"),
    ],
)
def test_what_is_not_there_is_told_with_what_to_do(tmp_path, wanted, told):
    put_model(tmp_path, "tiny")

    with pytest.raises(UserError) as caught:
        resolve(wanted, tmp_path)

    assert told in f"{caught.value} {caught.value.hint}"


def test_a_fetched_model_that_lost_a_file_is_refused(tmp_path):
    (put_model(tmp_path, "tiny") / "tokenizer.json").write_text("{ }")

    with pytest.raises(UserError, match="not what was fetched"):
        resolve("tiny", tmp_path)


def test_description_of_a_damaged_model_keeps_its_checksum_state(tmp_path):
    directory = put_model(tmp_path, "tiny")
    (directory / "model.safetensors").write_bytes(b"")

    model = describe(directory, read_content=False)

    assert ChecksumState.CHANGED is model.checksum
    assert "damaged or cut off" in model.problem
