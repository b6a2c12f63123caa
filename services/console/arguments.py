"""What options of the command line can say: sizes, ports, durations. Each raises `argparse.ArgumentTypeError` with what to write."""

from __future__ import annotations

import argparse

GIB = 1 << 30
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
DAY_S = 86_400.0
MAX_WINDOW_S = 3600.0
"""As long as the stream keeps them, whatever its bytes allow."""
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def size(text: str) -> int:
    """Return bytes for `2GiB`, `512M`, `1073741824`. Raises `argparse.ArgumentTypeError`."""
    number = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = number[-1:] if number[-1:] in UNITS and not number[-1:].isdigit() else ""
    try:
        return int(float(number.removesuffix(unit)) * UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size; write it as 2GiB or 512MiB"
        ) from None


def positive(text: str) -> int:
    """Return a whole number above zero. Raises `argparse.ArgumentTypeError`."""
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def whole(text: str) -> int:
    """Return a whole number, zero included. Raises `argparse.ArgumentTypeError`."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def positive_number(text: str) -> float:
    """Return a finite number above zero. Raises `argparse.ArgumentTypeError`."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def port(text: str) -> int:
    """Return a TCP port. Raises `argparse.ArgumentTypeError`."""
    if not text.isdigit() or not 1 <= int(text) <= 65535:  # noqa: PLR2004 -- TCP's number
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (1 to 65535)")
    return int(text)


def duration(text: str) -> float:
    """Return seconds for `90s`, `5m`, `1h`, `2.5`. Raises `argparse.ArgumentTypeError`."""
    number, unit = (text[:-1], text[-1:]) if text[-1:] in SECONDS else (text, "s")
    try:
        value = float(number) * SECONDS[unit]
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration; write it as 90s, 5m or 1h")
    return value


def age(text: str) -> float:
    """Return seconds for `90s`, `12h`, `7d`. Raises `argparse.ArgumentTypeError`."""
    if text[-1:] == "d":
        return DAY_S * positive_number(text[:-1])
    return duration(text)


def window(text: str) -> float:
    """Return seconds of a window in the past, at most what the bus keeps. Raises `argparse.ArgumentTypeError`."""
    value = duration(text)
    if value > MAX_WINDOW_S:
        raise argparse.ArgumentTypeError(f"{text!r} is too long: ledgers are kept for 1h")
    return value


def stage(text: str) -> str:
    """Return the name of one of the twelve stages. Raises `argparse.ArgumentTypeError`."""
    # Imported here: messages cost a tenth of a second, which `--help` should not pay.
    from shared.messages import STAGES  # noqa: PLC0415

    if text not in STAGES:
        raise argparse.ArgumentTypeError(f"{text!r} is no stage; they are {', '.join(STAGES)}")
    return text
