"""The bootstrap script over a checkout with three tiny wheels in place of the real lists: quick, and without a package index."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from shared.settings import environment
from tests.house.source_tree import ROOT

QUICK_S = 3.0
"""Far above the 12 ms that a run with nothing to do takes, far below what starting a Python and an installer would."""
INSTALL_S = 240.0
"""Deadline of one run; a quiet machine takes 6 s, nearly all of it the making of an environment with pip."""
TOOLS = (
    "sh",
    "cat",
    "sha256sum",
    "dirname",
    "readlink",
    "grep",
    "sed",
    "tr",
    "awk",
    "df",
    "rm",
    "mkdir",
    "mv",
    "flock",
    "id",
    "head",
    "env",
)

pytestmark = pytest.mark.timeout(600)


def add_wheel(folder: Path, name: str, version: str) -> None:
    """Write a wheel with one module."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", f"VERSION = {version!r}\n")
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{info}/RECORD", "")


class Checkout:
    """A folder with the real script, tiny lists, and pip told to look at a folder of wheels only."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a checkout"
        self.locks = self.root / "deploy" / "locks"
        self.locks.mkdir(parents=True)
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        self.script = self.root / "headrace"
        shutil.copy(ROOT / "headrace", self.script)
        for name, version in (("alpha", "1.0"), ("beta", "1.0"), ("torch", "2.13.0+cpu")):
            add_wheel(self.wheels, name, version)
        self.pin("base", "alpha==1.0")
        self.pin("dev", "")
        self.pin("engine-cpu", "beta==1.0\ntorch==2.13.0+cpu")
        inherited = {
            k: v for k, v in environment().items() if not k.startswith(("PIP_", "UV_", "HEADRACE_"))
        }
        self.env = inherited | {
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_NO_INDEX": "1",
            "HEADRACE_ACCELERATOR": "cpu",
        }

    def pin(self, name: str, lines: str) -> None:
        """Write a list."""
        (self.locks / f"{name}.txt").write_text(lines + "\n" if lines else "")

    def run(self, *, script: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        """Run `headrace setup` from another folder."""
        command = [script or self.script, "setup"]
        return subprocess.run(
            command,
            cwd="/",
            env=self.env | env,
            capture_output=True,
            text=True,
            timeout=INSTALL_S,
            check=False,
        )

    def version_of(self, module: str) -> str:
        """Ask the environment which version of a module it has."""
        command = [
            self.root / ".venv" / "bin" / "python",
            "-c",
            f"import {module}; print({module}.VERSION)",
        ]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def path_with(self, folder: Path, **scripts: str) -> str:
        """Return a PATH with the script's tools and the given ones: no Python unless given."""
        folder.mkdir()
        for tool in TOOLS:
            (folder / tool).symlink_to(shutil.which(tool) or pytest.fail(f"{tool} is missing"))
        for name, body in scripts.items():
            (folder / name).unlink(missing_ok=True)
            (folder / name).write_text(f"#!/bin/sh\n{body}\n")
            (folder / name).chmod(0o755)
        return str(folder)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A fresh one."""
    return Checkout(tmp_path)


def test_it_installs_from_pips_own_sources_is_quick_and_silent_after_and_follows_the_lists(
    checkout, tmp_path
):
    link = tmp_path / "link"
    link.symlink_to(checkout.script)

    first = checkout.run()
    begun_s = time.monotonic()
    second = checkout.run(script=link)
    took_s = time.monotonic() - begun_s
    add_wheel(checkout.wheels, "alpha", "2.0")
    checkout.pin("base", "alpha==2.0")
    changed = checkout.run()

    assert 0 == first.returncode, first.stderr
    assert "ready" in first.stderr
    assert (0, "", "") == (second.returncode, second.stdout, second.stderr)
    assert took_s < QUICK_S
    assert 0 == changed.returncode, changed.stderr
    versions = [checkout.version_of(module) for module in ("alpha", "beta", "torch")]
    assert ["2.0", "1.0", "2.13.0+cpu"] == versions
    assert list((checkout.root / ".venv").rglob("alpha/__pycache__/*.pyc"))


def test_two_at_once_make_what_a_killed_run_left_anew_and_only_once(checkout):
    venv = checkout.root / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "headrace-unfinished").touch()
    (venv / "bin" / "python").write_text("cut off")

    runs = [
        subprocess.Popen(
            [checkout.script, "setup"], env=checkout.env, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    said = sorted((run.communicate(timeout=INSTALL_S)[1] for run in runs), key=len)

    assert [0, 0] == [run.returncode for run in runs]
    assert "headrace: another run is installing; waiting for it\n" == said[0]
    assert "ready" in said[1]
    assert "1.0" == checkout.version_of("beta")


def test_what_cannot_be_found_is_told_with_where_to_point_pip_and_leaves_nothing_that_looks_whole(
    checkout,
):
    checkout.pin("base", "alpha==3.0")

    failed = checkout.run()

    assert 1 == failed.returncode
    assert "alpha==3.0" in failed.stderr
    assert "PIP_INDEX_URL" in failed.stderr
    assert not (checkout.root / ".venv" / "headrace-stamp").exists()
    assert (checkout.root / ".venv" / "headrace-unfinished").exists()


def test_an_environment_of_somebody_else_is_left_alone(checkout):
    (checkout.root / ".venv").mkdir()
    (checkout.root / ".venv" / "mine").write_text("")

    refused = checkout.run()

    assert 1 == refused.returncode
    assert "was not made by this script" in refused.stderr
    assert (checkout.root / ".venv" / "mine").exists()


def test_an_unknown_accelerator_is_refused(checkout):
    refused = checkout.run(HEADRACE_ACCELERATOR="tpu")

    assert 1 == refused.returncode
    assert "it may be cpu or cuda" in refused.stderr
    assert not (checkout.root / ".venv").exists()


def test_no_python_is_told(checkout, tmp_path):
    refused = checkout.run(PATH=checkout.path_with(tmp_path / "bin"))

    assert 1 == refused.returncode
    assert "no Python 3.11, 3.12 or 3.13 on PATH" in refused.stderr


def test_a_python_without_venv_is_told_with_the_package_that_has_it(checkout, tmp_path):
    crippled = f'case "$*" in *ensurepip*) exit 1 ;; esac; exec {sys.executable} "$@"'
    refused = checkout.run(PATH=checkout.path_with(tmp_path / "bin", **{"python3.11": crippled}))

    assert 1 == refused.returncode
    assert "python3.11 has no venv module" in refused.stderr
    assert "-venv" in refused.stderr


def test_a_disk_without_room_is_told_before_anything_is_done(checkout, tmp_path):
    full = "echo Filesystem; echo /dev/x 100 90 10 90% /"
    python = f'exec {sys.executable} "$@"'
    refused = checkout.run(
        PATH=checkout.path_with(tmp_path / "bin", df=full, **{"python3.11": python})
    )

    assert 1 == refused.returncode
    assert "10 MiB are free" in refused.stderr
    assert not (checkout.root / ".venv").exists()
