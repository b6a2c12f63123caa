"""The files that the house rules are about, each read and parsed once."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("services", "shared")
FOLDERS = (*PACKAGES, "tests", "bench", "examples", "scripts")


@cache
def sources(*folders: str) -> list[Path]:
    """Return the Python files below the folders, relative to the root."""
    return sorted(
        file.relative_to(ROOT) for folder in folders for file in (ROOT / folder).rglob("*.py")
    )


@cache
def text_of(file: Path) -> str:
    """Return a file's text."""
    return (ROOT / file).read_text()


@cache
def tree_of(file: Path) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse(text_of(file), filename=str(file))


def strings_of(file: Path) -> list[tuple[int, str]]:
    """Return line and text of all string literals, the constant parts of f-strings among them."""
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
