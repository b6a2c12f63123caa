"""Files and functions stay short, modules are named after things of the domain, and packages say what may be in them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.house.source_tree import FOLDERS, PACKAGES, ROOT, sources, text_of, tree_of

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_MAIN_LINES = 50
BANNED_NAMES = {"base", "common", "helper", "helpers", "manager", "misc", "util", "utils"}
"""They say nothing about what is inside, and so collect everything."""
CHARTER_LINES = range(1, 13)


def test_no_file_is_longer_than_400_lines():
    lengths = {str(file): text_of(file).count("\n") for file in sources(*FOLDERS)}

    assert {} == {file: lines for file, lines in lengths.items() if lines > MAX_FILE_LINES}


def test_no_function_is_longer_than_60_lines():
    functions = [
        (f"{file}:{node.lineno} {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1)
        for file in sources(*FOLDERS)
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]

    assert [] == [f"{name} ({lines})" for name, lines in functions if lines > MAX_FUNCTION_LINES]


def test_entry_points_only_wire():
    lengths = {
        str(file): text_of(file).count("\n")
        for file in sources(*PACKAGES)
        if file.name == "__main__.py"
    }

    assert {} == {file: lines for file, lines in lengths.items() if lines > MAX_MAIN_LINES}


def test_no_module_or_package_has_a_name_that_says_nothing():
    parts = {part for file in sources(*FOLDERS) for part in (*file.parent.parts, file.stem)}

    assert set() == parts & BANNED_NAMES


@pytest.mark.parametrize(
    "package", [file for file in sources(*PACKAGES) if file.name == "__init__.py"], ids=str
)
def test_a_package_opens_with_its_charter(package: Path):
    charter = ast.get_docstring(tree_of(package))

    assert charter, "a package says in its docstring what may be in it"
    assert len(charter.splitlines()) in CHARTER_LINES


def test_a_package_door_only_imports():
    """Code in an `__init__` runs for everybody who imports anything below it."""
    allowed = (ast.Import, ast.ImportFrom, ast.Expr, ast.Assign)
    others = [
        f"{file}:{node.lineno}"
        for file in sources(*PACKAGES)
        if file.name == "__init__.py"
        for node in tree_of(file).body
        if not isinstance(node, allowed)
    ]

    assert [] == others


def test_every_folder_with_code_is_a_package():
    folders = {file.parent for file in sources(*PACKAGES)}

    assert [] == [
        str(folder) for folder in folders if not (ROOT / folder / "__init__.py").is_file()
    ]
