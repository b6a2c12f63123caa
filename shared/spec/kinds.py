"""The kinds of values in an `LLMService`: how each is read from a document, written back, and told to an editor. Pure.

One object a kind; `shared.spec.tables` puts them together. `read` raises `ValueError` with nothing to say: `hint` says what belongs there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

Json = dict[str, Any]

_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s{0,4}(ms|s|m|h|d)")
_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_IBYTES = {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s{0,4}([kmgt]?i?)b?", re.IGNORECASE)
_PERCENT = re.compile(r"(?:>=?|≥)?\s{0,4}(\d{1,3}(?:\.\d{1,9})?)\s{0,4}%")
_LATENCY = re.compile(
    r"p(\d{1,2}(?:\.\d{1,4})?)\s{0,4}(?:<=?|≤)\s{0,4}(.{1,40})", re.IGNORECASE
)
_TIMES = re.compile(r"(\d{1,4})\s{1,4}(?:consecutive\s{1,4})?failures?", re.IGNORECASE)
MAX_TEXT = 4096
HUNDRED = 100.0


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
        if len(text) > self._max_chars or any(ord(char) < 32 and char not in "\n\t" for char in text):
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

    def write(self, value: bool) -> object:  # noqa: FBT001 -- the value itself
        """See `Kind`."""
        return value

    def schema(self) -> Json:
        """See `Kind`."""
        return {"type": "boolean"}


class Number:
    """A number between bounds; `above`: the lower one is not part of it."""

    def __init__(
        self, lowest: float, highest: float, *, example: str, above: bool = False, whole: bool = False
    ) -> None:
        self._lowest, self._highest = lowest, highest
        self._above, self._whole = above, whole
        sort = "whole number" if whole else "number"
        least = f"above {lowest:g}" if above else f"from {lowest:g}"
        self.hint = f"write a {sort} {least} to {highest:g}, as {example}"

    def read(self, value: object) -> float | int:
        """See `Kind`."""
        number = number_of(value)
        if number < self._lowest or number > self._highest or (self._above and number == self._lowest):
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


class Share:
    """A share of a whole, as `20%`, `>95%` or 0.2."""

    def __init__(self, example: str, *, above: bool = False) -> None:
        self._above = above
        self.hint = f"write a share {'above 0%' if above else 'of 0%'} to 100%, as {example}"

    def read(self, value: object) -> float:
        """See `Kind`."""
        match = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
        share = float(match[1]) / HUNDRED if match else number_of(value)
        if not 0.0 <= share <= 1.0 or (self._above and share == 0.0):
            raise ValueError
        return share

    def write(self, value: float) -> object:
        """See `Kind`. A share that percents would round is written as a number."""
        text = f"{value * HUNDRED:.9g}%"
        return text if self.read(text) == value else value

    def schema(self) -> Json:
        """See `Kind`."""
        return {
            "anyOf": [
                {"type": "number", "minimum": 0, "maximum": 1},
                {"type": "string", "pattern": r"^\s*(?:(?:>=?|≥)?\s*\d{1,3}(\.\d+)?\s*%|[01]?(\.\d+)?)\s*$"},
            ]
        }


class Duration:
    """A time, as `500ms`, `30s`, `15m`, `2h` or seconds."""

    def __init__(self, example: str, *, highest_s: float, or_zero: bool = False) -> None:
        self._highest_s, self._or_zero = highest_s, or_zero
        least = "of 0s" if or_zero else "above 0s"
        self.hint = f"write a time {least} to {self.write(highest_s)}, as {example}"

    def read(self, value: object) -> float:
        """See `Kind`."""
        seconds = seconds_of(value)
        if seconds > self._highest_s or seconds < 0 or (seconds == 0 and not self._or_zero):
            raise ValueError
        return seconds

    def write(self, value: float) -> object:
        """See `Kind`."""
        for unit in ("d", "h", "m", "s", "ms"):
            count = value / _SECONDS[unit]
            text = f"{count:.9g}{unit}"
            if count >= 1 and count == int(count) and seconds_of(text) == value:
                return text
        return value

    def schema(self) -> Json:
        """See `Kind`."""
        return {
            "anyOf": [
                {"type": "number", "minimum": 0, "maximum": self._highest_s},
                {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*(ms|s|m|h|d)?\s*$"},
            ]
        }


def seconds_of(value: object) -> float:
    """Return seconds for `30s` or a number. Raises `ValueError`."""
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        return float(match[1]) * _SECONDS[match[2]]
    return number_of(value)


class Size:
    """Bytes, as `32Gi`, `512MiB`, `2GB` or a number."""

    def __init__(self, example: str, *, lowest: int = 1, highest: int = 1 << 50) -> None:
        self._lowest, self._highest = lowest, highest
        self.hint = f"write a size of at least {lowest} bytes, as {example}"

    def read(self, value: object) -> int:
        """See `Kind`."""
        if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
            unit = match[2].lower()
            if unit == "i":
                raise ValueError
            found = int(float(match[1]) * (_IBYTES.get(unit) or _BYTES[unit]))
        else:
            number = number_of(value)
            found = int(number)
            if found != number:
                raise ValueError
        if not self._lowest <= found <= self._highest:
            raise ValueError
        return found

    def write(self, value: int) -> object:
        """See `Kind`."""
        for unit in ("Ti", "Gi", "Mi", "Ki"):
            count, rest = divmod(value, _IBYTES[unit.lower()])
            if count and not rest:
                return f"{count}{unit}"
        return value

    def schema(self) -> Json:
        """See `Kind`."""
        return {
            "anyOf": [
                {"type": "integer", "minimum": self._lowest, "maximum": self._highest},
                {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*([kKmMgGtT][iI]?)?[bB]?\s*$"},
            ]
        }


class Several:
    """A list of one kind, or a text with commas where that kind is a text."""

    def __init__(self, one: Kind, hint: str, *, most: int = 64) -> None:
        self._one, self._most = one, most
        self.hint = hint

    def read(self, value: object) -> tuple[Any, ...]:
        """See `Kind`."""
        items: object = [item.strip() for item in value.split(",")] if isinstance(value, str) else value
        if not isinstance(items, Sequence) or isinstance(items, str | bytes) or len(items) > self._most:
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
            self._one.read(key): str(item).lower() if isinstance(item, bool) else self._one.read(item)
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


def latency_of(value: object) -> tuple[float, float]:
    """Return quantile and seconds of `P99 < 2s`. Raises `ValueError`."""
    match = _LATENCY.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError
    quantile = float(match[1]) / HUNDRED
    seconds = seconds_of(match[2])
    if not 0.0 < quantile < 1.0 or not 0.0 < seconds <= _SECONDS["h"]:
        raise ValueError
    return quantile, seconds


def failures_of(value: object) -> int:
    """Return the number of `3 consecutive failures` or 3. Raises `ValueError`."""
    match = _TIMES.fullmatch(value.strip()) if isinstance(value, str) else None
    number = float(match[1]) if match else number_of(value)
    if number != int(number) or not 1 <= number <= 1000:
        raise ValueError
    return int(number)
