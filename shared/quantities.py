"""Durations, shares and counts as people read them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

MS_US = 1_000
S_US = 1_000_000
MIN_S = 60
TEN = 10.0
HUNDRED = 100.0
KIB = 1024
AGES = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))
SMALLEST_MS = 0.05
SMALLEST_SHARE = 0.0005
"""Below it a share would be written as 0.0%."""


def duration(us: float) -> str:
    """Return microseconds in a unit that fits: `0.4 ms`, `12 ms`, `4.1 s`, `2 min 5 s`."""
    ms = us / MS_US
    if 0 < ms < SMALLEST_MS:
        return "<0.1 ms"
    if round(ms) < MS_US:
        return f"{ms:.0f} ms" if ms >= TEN or ms == 0 else f"{ms:.1f} ms"
    seconds = us / S_US
    if round(seconds) >= 2 * MIN_S:
        minutes, rest = divmod(round(seconds), MIN_S)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{seconds:.1f} s" if round(seconds, 1) < HUNDRED else f"{seconds:.0f} s"


def percent(share: float) -> str:
    """Return a share of 1: `78%`, `0.4%`, `0%`; never a rounded 100% or 0% that is none."""
    value = share * HUNDRED
    if share <= 0:
        return "0%"
    if share < SMALLEST_SHARE:
        return "<0.1%"
    if round(value, 1) < 1:
        return f"{value:.1f}%"
    return ">99%" if share < 1 and round(value) == HUNDRED else f"{value:.0f}%"


def count(number: float) -> str:
    """Return a count with thousands apart, a small broken one with one decimal: `7,012`, `2.5`."""
    if number < TEN and round(number, 1) != round(number):
        return f"{number:.1f}"
    return f"{number:,.0f}"


def several(number: int, noun: str) -> str:
    """Return `1 request`, `7 requests`, `no requests`; for nouns with a plural in s."""
    return (
        f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
        if number < MS_US
        else f"{number:,} {noun}s"
    )


def enumerated(parts: Sequence[str]) -> str:
    """Return `a`, `a and b`, `a, b and c`."""
    return " and ".join((", ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else "".join(parts)


def in_bytes(number: float) -> str:
    """Return bytes in a unit that fits: `512 B`, `4.0 KiB`, `19.5 GiB`."""
    value, units = float(number), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while round(value, 1) >= KIB and len(units) > 1:
        value /= KIB
        units.pop(0)
    return f"{value:.0f} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def age(seconds: float) -> str:
    """Return an age in its largest unit: `12 s`, `5 min`, `3 h`, `9 d`."""
    for size, unit in AGES:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
