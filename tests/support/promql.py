"""Which metrics a PromQL expression is about. For our own expressions: not a parser, and strict about what it does not know."""

from __future__ import annotations

import re

_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')
_MATCHERS = re.compile(r"\{[^{}]*\}")
_RANGES = re.compile(r"\[[^\]]*\]")
_GROUPS = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^()]*\)")
_WORDS = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?!\w)(\s*\()?")
_OPERATORS = {"and", "or", "unless", "bool", "offset"}
_NUMBERS = re.compile(r"\b\d[\w.]*")


def metrics_of(expression: str) -> set[str]:
    """Return the names of all metrics in an expression."""
    text = expression
    for pattern in (_STRINGS, _MATCHERS, _RANGES, _GROUPS, _NUMBERS):
        text = pattern.sub(" ", text)
    return {
        match[0]
        for match in _WORDS.finditer(text)
        if match[1] is None and match[0].lower() not in _OPERATORS
    } - {"by", "without"}
