"""Words that stand in one place only, or nowhere: subjects, mocks, and what belongs to one machine."""

from __future__ import annotations

import ast
import re
import subprocess

from tests.house.source_tree import FOLDERS, PACKAGES, ROOT, sources, strings_of, tree_of

SUBJECT = re.compile(r"^hr\.[\w{*>]")
FOREIGN_PATH = re.compile(r"(?<![\w.~])/(?:work|root)/\w")
REGISTRY = re.compile(r"https?://[\w.-]*(?:pypi|pythonhosted|npmjs|debian)\.", re.IGNORECASE)
BANNED_CALLS = {("monkeypatch", "setattr"), ("monkeypatch", "setitem"), ("mocker", "patch")}


def tracked_texts() -> dict[str, str]:
    """Return all text files that git knows, this one left out since it names what it looks for."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"],  # noqa: S607 - whichever git the checkout was made with
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    texts = {}
    for name in filter(None, listed.split("\0")):
        file = ROOT / name
        if file.is_file() and name != "tests/house/test_words.py":
            texts[name] = file.read_bytes().decode("utf-8", errors="ignore")
    return texts


def test_subjects_stand_in_the_contract_only():
    found = [
        f"{file}:{line} {text!r}"
        for file in sources(*PACKAGES)
        if file.parts[:2] != ("shared", "messages")
        for line, text in strings_of(file)
        if SUBJECT.match(text)
    ]

    assert [] == found


def test_nobody_mocks():
    """Each port has a fake beside it; what is replaced from outside is not the thing that runs."""
    calls = [
        f"{file}:{node.lineno}"
        for file in sources(*FOLDERS)
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) in BANNED_CALLS
    ]
    imports = [
        f"{file}:{node.lineno}"
        for file in sources(*FOLDERS)
        for node in ast.walk(tree_of(file))
        if (
            isinstance(node, ast.ImportFrom)
            and node.module in {"unittest", "unittest.mock", "mock"}
        )
        or (
            isinstance(node, ast.Import)
            and {name.name for name in node.names} & {"unittest.mock", "mock"}
        )
    ]

    assert [] == calls + imports


def test_no_path_of_one_machine_and_no_address_of_a_registry():
    found = [
        f"{name}: {match.group()}"
        for name, text in tracked_texts().items()
        for pattern in (FOREIGN_PATH, REGISTRY)
        for match in pattern.finditer(text)
    ]

    assert [] == found
