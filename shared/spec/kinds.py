"""The kinds of values in an `LLMService`: how each is read from a document, written back, and told to an editor. Pure.

One object a kind; `shared.spec.tables` puts them together. `read` raises `ValueError` with nothing to say: `hint` says what belongs there.
"""

# ruff: noqa: TRY004 -- a reader has one way to refuse: what is of the wrong type does not fit, as what is too large does not

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

Json = dict[str, Any]

MAX_TEXT = 4096
FIRST_PRINTABLE = 32


class Kind(Protocol):
    """How one sort of value is read and written."""

    @property
    def hint(self) -> str:
        """What belongs there, with an example."""
        ...

    def read(self, value: object) -> Any:
        """Return the value in SI units. Raises `ValueError`."""
        ...

    def write(self, value: Any) -> object:
        """Return what `read` makes `value` of."""
        ...

    def schema(self) -> Json:
        """Return the JSON Schema of what `read` takes."""
        ...


def number_of(value: object) -> float:
    """Return a finite number, also of a text that holds one. Raises `ValueError`."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    if isinstance(value, str) and len(value) > MAX_TEXT:
        raise ValueError
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError from error
    if not abs(number) < float("inf"):
        raise ValueError
    return number


class Text:
    """A short text."""

    def __init__(self, hint: str, *, pattern: str = "", max_chars: int = MAX_TEXT) -> None:
        self.hint = hint
        self._pattern = pattern
        self._max_chars = max_chars

    def read(self, value: object) -> str:
        """See `Kind`. A number that YAML made of a version is taken as it was most likely written."""
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError
        text = str(value)
        if len(text) > self._max_chars or any(
            ord(char) < FIRST_PRINTABLE and char not in "\n\t" for char in text
        ):
            raise ValueError
        if self._pattern and not re.fullmatch(self._pattern, text):
            raise ValueError
        return text

    def write(self, value: str) -> object:
        """See `Kind`."""
        return value

    def schema(self) -> Json:
        """See `Kind`."""
        if self._pattern:
            return {"type": ["string", "number"], "pattern": f"^(?:{self._pattern})$"}
        return {"type": ["string", "number"], "maxLength": self._max_chars}


class Choice:
    """One of a few words."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.hint = f"write one of {', '.join(words)}"

    def read(self, value: object) -> str:
        """See `Kind`. YAML reads a bare `off` as false."""
        word = "off" if value is False and "off" in self.words else value
        if not isinstance(word, str) or word not in self.words:
            raise ValueError
        return word

    def write(self, value: str) -> object:
        """See `Kind`."""
        return value

    def schema(self) -> Json:
        """See `Kind`."""
        return {"enum": [*self.words, *([False] if "off" in self.words else [])]}


class Flag:
    """Yes or no."""

    hint = "write true or false"

    def read(self, value: object) -> bool:
        """See `Kind`."""
        if not isinstance(value, bool):
            raise ValueError
        return value

    def write(self, value: bool) -> object:
        """See `Kind`."""
        return value

    def schema(self) -> Json:
        """See `Kind`."""
        return {"type": "boolean"}


class Number:
    """A number between bounds; `above`: the lower one is not part of it."""

    def __init__(
        self,
        lowest: float,
        highest: float,
        *,
        example: str,
        above: bool = False,
        whole: bool = False,
    ) -> None:
        self._lowest, self._highest = lowest, highest
        self._above, self._whole = above, whole
        sort = "whole number" if whole else "number"
        least = f"above {lowest:g}" if above else f"from {lowest:g}"
        self.hint = f"write a {sort} {least} to {highest:g}, as {example}"

    def read(self, value: object) -> float | int:
        """See `Kind`."""
        number = number_of(value)
        if (
            number < self._lowest
            or number > self._highest
            or (self._above and number == self._lowest)
        ):
            raise ValueError
        if not self._whole:
            return number
        if number != int(number):
            raise ValueError
        return int(number)

    def write(self, value: float) -> object:
        """See `Kind`."""
        return int(value) if value == int(value) else value

    def schema(self) -> Json:
        """See `Kind`."""
        least = "exclusiveMinimum" if self._above else "minimum"
        found: Json = {"type": ["number", "string"], least: self._lowest, "maximum": self._highest}
        if self._whole:
            found["multipleOf"] = 1
        return found


class Several:
    """A list of one kind, or a text with commas where that kind is a text."""

    def __init__(self, one: Kind, hint: str, *, most: int = 64) -> None:
        self._one, self._most = one, most
        self.hint = hint

    def read(self, value: object) -> tuple[Any, ...]:
        """See `Kind`."""
        items: object = (
            [item.strip() for item in value.split(",")] if isinstance(value, str) else value
        )
        if (
            not isinstance(items, Sequence)
            or isinstance(items, str | bytes)
            or len(items) > self._most
        ):
            raise ValueError
        return tuple(self._one.read(item) for item in items)

    def write(self, value: tuple[Any, ...]) -> object:
        """See `Kind`."""
        return [self._one.write(item) for item in value]

    def schema(self) -> Json:
        """See `Kind`."""
        items = {"type": "array", "items": self._one.schema(), "maxItems": self._most}
        return {"anyOf": [items, {"type": "string"}]}


class Texts:
    """A table of texts, as labels are."""

    def __init__(self, hint: str, *, most: int = 64, max_chars: int = MAX_TEXT) -> None:
        self.hint = hint
        self._most = most
        self._one = Text(hint, max_chars=max_chars)

    def read(self, value: object) -> dict[str, str]:
        """See `Kind`. A flag becomes the word that stands for it in YAML."""
        if not isinstance(value, Mapping) or len(value) > self._most:
            raise ValueError
        plain = {
            self._one.read(key): str(item).lower()
            if isinstance(item, bool)
            else self._one.read(item)
            for key, item in value.items()
        }
        if not all(plain):
            raise ValueError
        return plain

    def write(self, value: dict[str, str]) -> object:
        """See `Kind`."""
        return dict(value)

    def schema(self) -> Json:
        """See `Kind`."""
        values = {"type": ["string", "number", "boolean"]}
        return {"type": "object", "additionalProperties": values, "maxProperties": self._most}


class AnyTable:
    """A table that others understand (vLLM's own fields): plain values only, of bounded size and depth."""

    _MOST = 1000
    _DEEP = 8

    def __init__(self, hint: str) -> None:
        self.hint = hint

    def read(self, value: object) -> dict[str, object]:
        """See `Kind`."""
        if not isinstance(value, Mapping):
            raise ValueError
        budget = [self._MOST]
        found = self._plain(value, budget, 0)
        assert isinstance(found, dict)
        return found

    def _plain(self, value: object, budget: list[int], depth: int) -> object:
        budget[0] -= 1
        if budget[0] < 0 or depth > self._DEEP:
            raise ValueError
        if isinstance(value, Mapping):
            if not all(isinstance(key, str) and key for key in value):
                raise ValueError
            return {key: self._plain(item, budget, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._plain(item, budget, depth + 1) for item in value]
        if value is None or isinstance(value, bool | int):
            if isinstance(value, int) and abs(value) >= 1 << 63:
                raise ValueError
            return value
        if isinstance(value, float):
            return number_of(value)
        if isinstance(value, str) and len(value) <= MAX_TEXT:
            return value
        raise ValueError

    def write(self, value: dict[str, object]) -> object:
        """See `Kind`."""
        return value

    def schema(self) -> Json:
        """See `Kind`."""
        return {"type": "object"}


class Checked:
    """A kind whose values must also pass a check of their own."""

    def __init__(self, kind: Kind, hint: str, check: Callable[[Any], bool]) -> None:
        self._kind, self._check = kind, check
        self.hint = hint

    def read(self, value: object) -> Any:
        """See `Kind`."""
        found = self._kind.read(value)
        if not self._check(found):
            raise ValueError
        return found

    def write(self, value: Any) -> object:
        """See `Kind`."""
        return self._kind.write(value)

    def schema(self) -> Json:
        """See `Kind`."""
        return self._kind.schema()
