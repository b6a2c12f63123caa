"""`headrace validate-model` and `debug-logits` on a real model and on damaged copies of it, each in a real engine of its own."""

from __future__ import annotations

import json
import random
import shutil
from array import array
from pathlib import Path

import pytest

from shared.models.store import MANIFEST
from tests.support import command_line

WEIGHTS = "model.safetensors"
DAMAGED_LAYER = "model.layers.15."


def run(capsys: pytest.CaptureFixture[str], *words: str):
    """Return the exit code of a command and the document it wrote."""
    code = command_line.main([*words, "-o", "json"])
    told = capsys.readouterr()
    return code, json.loads(told.out) if told.out else told.err


def copy_of(model: Path, folder: Path) -> Path:
    """Return a copy that says nothing of its origin."""
    copy = folder / "copy"
    shutil.copytree(model, copy)
    (copy / MANIFEST).unlink()
    return copy


def shuffle_layer(model: Path) -> None:
    """Permute the numbers within each tensor of one layer."""
    file = model / WEIGHTS
    data = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    draw = random.Random(1)
    for name, entry in header.items():
        if name.startswith(DAMAGED_LAYER):
            begin, end = (start + offset for offset in entry["data_offsets"])
            values = array("H", bytes(data[begin:end]))
            draw.shuffle(values)
            data[begin:end] = values.tobytes()
    file.write_bytes(data)


def failed(verdict) -> set[str]:
    return {check["name"] for check in verdict["checks"] if not check["passed"]}


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_healthy_model_passes(smollm2, capsys):
    code, verdict = run(capsys, "validate-model", "--model", str(smollm2))

    assert (0, True, set()) == (code, verdict["passed"], failed(verdict))
    rate = next(each for each in verdict["checks"] if each["name"] == "kv_cache_hit_rate")
    assert rate["figure"] >= 0.85


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_shuffled_layer_fails_the_model_and_shows_at_the_first_token(smollm2, tmp_path, capsys):
    damaged = copy_of(smollm2, tmp_path)
    shuffle_layer(damaged)

    code, verdict = run(capsys, "validate-model", "--model", str(damaged))
    compared, document = run(
        capsys, "debug-logits", "--prompt", "hi", "--against", str(damaged),
        "--model", str(smollm2), "--tokens", "4", "--top", "3",
    )  # fmt: skip

    assert 1 == code
    assert {"perplexity", "finish", "repetition"} <= failed(verdict)
    assert 1 == compared
    assert 1 == document["comparison"]["begins_at"]
    assert 4 == len(document["comparison"]["places"])


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_config_that_does_not_fit_the_weights_fails_with_the_engines_reason(
    smollm2, tmp_path, capsys
):
    damaged = copy_of(smollm2, tmp_path)
    config = damaged / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"hidden_act": "relu"}))

    code, verdict = run(capsys, "validate-model", "--model", str(damaged))

    assert 1 == code
    load = next(each for each in verdict["checks"] if each["name"] == "load")
    assert "relu" in load["note"]


def test_a_truncated_file_fails_before_anything_is_started(smollm2, tmp_path, capsys):
    damaged = copy_of(smollm2, tmp_path)
    with (damaged / WEIGHTS).open("r+b") as weights:
        weights.truncate(1_000_000)

    code, verdict = run(capsys, "validate-model", "--model", str(damaged))

    assert 1 == code
    assert "cut off" in verdict["checks"][0]["note"]
    assert {"not run: load failed"} == {each["note"] for each in verdict["checks"][2:]}


@pytest.mark.parametrize(
    "words",
    [
        ("validate-model", "--model", "/nowhere"),
        ("validate-model", "--model", __file__),
        ("debug-logits", "--prompt", "hi", "--model", "/nowhere"),
        ("model", "quantize", "/nowhere", "--out", "/nowhere/q"),
    ],
)
def test_what_is_no_model_is_an_error_of_the_users(words):
    assert 2 == command_line.main(list(words))


def test_a_request_id_without_a_platform_says_so(smollm2, capsys):
    words = ("debug-logits", "--request-id", "x", "--model", str(smollm2), "--name", "none-of-that")

    assert 2 == command_line.main(list(words))
    assert "headrace up" in capsys.readouterr().err
