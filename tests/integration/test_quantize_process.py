"""`headrace model quantize` around the process that does it; that process is a script here, which says what the real one says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import command_line

PYTHON = """#!/bin/sh
# $1 is -P, $2 our program, $3 `check` or the model, $4 the folder to fill
if [ "$3" = check ]; then
    echo '{"packages": {"llmcompressor": "0.12.0.2", "torch": "2.13.0"}, "accelerator": false}'
    exit 0
fi
echo loading
mkdir "$4"
echo weights > "$4/model.safetensors"
%s
"""


def python_that(ends: str, folder: Path) -> Path:
    """Return a program that does the work and then ends so."""
    program = folder / "python"
    program.write_text(PYTHON % ends)
    program.chmod(0o755)
    return program


def quantize(model: Path, python: Path, out: Path) -> int:
    words = ("--group-size", "64", "--python", str(python), "--out", str(out))
    return command_line.main(["model", "quantize", str(model), *words])


def test_the_result_is_switched_in_whole_and_its_place_told(smollm2, tmp_path, capsys):
    out = tmp_path / "q"

    code = quantize(smollm2, python_that("exit 0", tmp_path), out)

    told = capsys.readouterr()
    assert 0 == code
    assert f"{out}\n" == told.out
    assert "loading" in told.err
    assert ["model.safetensors"] == [file.name for file in out.iterdir()]
    assert 2 == quantize(smollm2, python_that("exit 0", tmp_path), out), "it is there already"


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        (
            "echo 'ValueError: no such layer' >&2; echo later >&2; exit 1",
            "ValueError: no such layer",
        ),
        ("exit 3", "code 3"),
        ("kill -KILL $$", "SIGKILL"),
    ],
)
def test_a_failure_leaves_nothing_and_says_why(smollm2, tmp_path, capsys, ends, says):
    out = tmp_path / "q"

    code = quantize(smollm2, python_that(ends, tmp_path), out)

    assert 1 == code
    assert says in capsys.readouterr().err
    assert ["python"] == [file.name for file in tmp_path.iterdir()]


def test_a_group_size_that_does_not_fit_is_refused_before_anything_starts(
    smollm2, tmp_path, capsys
):
    words = ("--out", str(tmp_path / "q"), "--python", str(tmp_path / "none"))

    assert 2 == command_line.main(["model", "quantize", str(smollm2), *words])
    assert "--group-size 64" in capsys.readouterr().err
