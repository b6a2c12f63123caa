"""Quantities as people write them: shares, times, sizes, and what is promised in them. Pure; see `shared.spec.kinds`."""

from __future__ import annotations

import re
from decimal import Decimal

from shared.spec.kinds import Json, number_of

_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s{0,4}(ms|s|m|h|d)")
_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_IBYTES = {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s{0,4}([kmgt]?i?)b?", re.IGNORECASE)
_PERCENT = re.compile(r"(?:>=?|≥)?\s{0,4}(\d{1,3}(?:\.\d{1,9})?)\s{0,4}%")
_LATENCY = re.compile(r"p(\d{1,2}(?:\.\d{1,4})?)\s{0,4}(?:<=?|≤)\s{0,4}(.{1,40})", re.IGNORECASE)
_TIMES = re.compile(r"(\d{1,4})\s{1,4}(?:consecutive\s{1,4})?failures?", re.IGNORECASE)
HUNDRED = 100.0
MAX_FAILURES = 1000


class Share:
    """A share of a whole, as `20%`, `>95%` or 0.2."""

    def __init__(self, example: str, *, above: bool = False) -> None:
        self._above = above
        self.hint = f"write a share {'above 0%' if above else 'of 0%'} to 100%, as {example}"

    def read(self, value: object) -> float:
        """See `Kind`."""
        match = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
        share = _percent(match[1]) if match else number_of(value)
        if not 0.0 <= share <= 1.0 or (self._above and share == 0.0):
            raise ValueError
        return share

    def write(self, value: float) -> object:
        """See `Kind`. A share that percents would round is written as a number."""
        percent = value * HUNDRED
        text = f"{percent:.9f}".rstrip("0").rstrip(".") + "%"
        return text if _percent(text[:-1]) == value else value

    def schema(self) -> Json:
        """See `Kind`."""
        return {
            "anyOf": [
                {"type": "number", "minimum": 0, "maximum": 1},
                {
                    "type": "string",
                    "pattern": r"^\s*(?:(?:>=?|≥)?\s*\d{1,3}(\.\d+)?\s*%|[01]?(\.\d+)?)\s*$",
                },
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


def latency_of(value: object) -> tuple[float, float]:
    """Return quantile and seconds of `P99 < 2s`. Raises `ValueError`."""
    match = _LATENCY.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError
    quantile = _percent(match[1])
    seconds = seconds_of(match[2])
    if not 0.0 < quantile < 1.0 or not 0.0 < seconds <= _SECONDS["h"]:
        raise ValueError
    return quantile, seconds


def failures_of(value: object) -> int:
    """Return the number of `3 consecutive failures` or 3. Raises `ValueError`."""
    match = _TIMES.fullmatch(value.strip()) if isinstance(value, str) else None
    number = float(match[1]) if match else number_of(value)
    if number != int(number) or not 1 <= number <= MAX_FAILURES:
        raise ValueError
    return int(number)


def _percent(digits: str) -> float:
    """Return the float nearest to so many hundredths: 99.9 is 0.999."""
    return float(Decimal(digits) / 100)
