"""`./headrace test` fetches Prometheus once where there is none, by apt and without installing it; without apt it says so and goes on."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from shared.settings import environment
from tests.house.source_tree import ROOT

TOOLS = (
    "sh",
    "cat",
    "sha256sum",
    "dirname",
    "readlink",
    "rm",
    "mkdir",
    "mv",
    "flock",
    "id",
    "env",
    "tar",
    "touch",
    "chmod",
)
APT = """echo "$@" >>"$LOG"
case "$*" in
*update) touch "$LISTS" ;;
*download*) [ -e "$LISTS" ] || exit 100; for each; do :; done; touch "${each}_2.42_amd64.deb" ;;
esac
"""
"""Knows nothing before an update."""
DPKG_DEB = """case "$2" in
promtool*) own=promtool ;;
*) own=$IN_PROMETHEUS ;;
esac
mkdir -p made/usr/bin
for each in $own; do echo 'exit 0' >made/usr/bin/$each; chmod +x made/usr/bin/$each; done
tar -c -C made ./usr/bin
rm -r made
"""


class Checkout:
    """The script, an environment that counts as ready and runs no test, and a PATH of a few tools."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        self.log = folder / "apt.log"
        self._bin = folder / "bin"
        self._bin.mkdir()
        for tool in TOOLS:
            (self._bin / tool).symlink_to(shutil.which(tool) or pytest.fail(f"{tool} is missing"))
        (self.root / "deploy" / "locks").mkdir(parents=True)
        (self.root / "deploy" / "locks" / "base.txt").write_text("alpha==1.0\n")
        (self.root / ".headrace").mkdir()
        shutil.copy(ROOT / "headrace", self.root / "headrace")
        self.binary = self.root / ".venv" / "prometheus" / "usr" / "bin" / "promtool"
        python = self.root / ".venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        self._script(python, 'echo "ran $*"')
        digest = hashlib.sha256(b"alpha==1.0\n").hexdigest()
        stamp = f"cpu\n1 {digest}  - {self.root}\n"
        (self.root / ".venv" / "headrace-stamp").write_text(stamp)
        self.env = {k: v for k, v in environment().items() if not k.startswith("HEADRACE_")} | {
            "PATH": str(self._bin),
            "LOG": str(self.log),
            "LISTS": str(folder / "lists"),
        }

    def add(self, name: str, body: str) -> None:
        """Put a program on PATH."""
        self._script(self._bin / name, body)

    def test(self, **env: str) -> subprocess.CompletedProcess[str]:
        """Run `headrace test -q`."""
        command = [self.root / "headrace", "test", "-q"]
        return subprocess.run(
            command, env=self.env | env, capture_output=True, text=True, timeout=30, check=False
        )

    def _script(self, path: Path, body: str) -> None:
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A fresh one."""
    return Checkout(tmp_path)


@pytest.mark.parametrize("content", ["prometheus promtool", "prometheus"])
def test_it_is_fetched_once_with_an_update_where_apt_has_no_lists(checkout, content):
    checkout.add("apt-get", APT)
    checkout.add("dpkg-deb", DPKG_DEB)

    first, second = checkout.test(IN_PROMETHEUS=content), checkout.test()

    assert "ran -m pytest -q\n" == first.stdout, first.stderr
    assert "fetching Debian's prometheus" in first.stderr
    assert checkout.binary.exists()
    asked = checkout.log.read_text().splitlines()
    assert 1 == sum("update" in line for line in asked)
    assert not [line for line in asked if "install" in line]
    assert ("ran -m pytest -q\n", "") == (second.stdout, second.stderr)


def test_the_systems_own_is_taken(checkout):
    checkout.add("prometheus", "")
    checkout.add("promtool", "")

    ran = checkout.test()

    assert ("ran -m pytest -q\n", "") == (ran.stdout, ran.stderr)


def test_without_apt_the_tests_run_all_the_same_and_what_lacks_is_told(checkout):
    ran = checkout.test()

    assert "ran -m pytest -q\n" == ran.stdout
    assert "sudo apt install prometheus" in ran.stderr
    assert not checkout.binary.exists()
