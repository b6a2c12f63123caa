"""The one place that writes to the terminal. Results go to stdout, progress and errors to stderr.

What a text of others holds of control characters never gets there.
"""

from __future__ import annotations

import shutil
import sys
from itertools import islice

import msgspec

from services.console.plain import in_json, plain

HOME, CLEAR_LINE, CLEAR_BELOW, CLEAR_ALL = "\033[H", "\033[K", "\033[J", "\033[2J"


def line(text: str = "") -> None:
    """Write a result line."""
    sys.stdout.write(plain(text) + "\n")
    sys.stdout.flush()


def piece(text: str) -> None:
    """Write a part of a line at once."""
    sys.stdout.write(plain(text))
    sys.stdout.flush()


def note(text: str) -> None:
    """Tell the person at the terminal what is going on."""
    sys.stderr.write(plain(text) + "\n")
    sys.stderr.flush()


def progress(text: str) -> None:
    """Overwrite the current line of a terminal; silent where stderr is a file."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[2K{plain(text)}")
        sys.stderr.flush()


def progress_done() -> None:
    """Clear the progress line."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[2K")
        sys.stderr.flush()


def json_document(value: object) -> None:
    """Write a value as indented JSON."""
    _whole(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def json_line(value: object) -> None:
    """Write a value as JSON on one line."""
    _whole(msgspec.json.encode(value).decode())


def _whole(document: str) -> None:
    sys.stdout.write(in_json(document) + "\n")
    sys.stdout.flush()


def is_terminal() -> bool:
    """Return whether results go to a person's terminal."""
    return sys.stdout.isatty()


class Frames:
    """Pictures that take each other's place on a terminal, cut to its size; elsewhere one block after the other."""

    def __init__(self) -> None:
        self._shown = 0

    def show(self, text: str) -> None:
        """Write a picture."""
        if not is_terminal():
            line(f"\n{text}" if self._shown else text)
        else:
            size = shutil.get_terminal_size()
            rows = islice(plain(text).split("\n"), size.lines - 1)
            cut = "".join(f"{row[: size.columns]}{CLEAR_LINE}\n" for row in rows)
            sys.stdout.write(f"{HOME if self._shown else CLEAR_ALL + HOME}{cut}{CLEAR_BELOW}")
            sys.stdout.flush()
        self._shown += 1


def error(message: str, hint: str = "") -> None:
    """Report an error that the user can repair."""
    note(f"headrace: {message}")
    if hint:
        note(f"  → {hint}")
