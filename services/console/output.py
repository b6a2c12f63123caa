"""The one place that writes to the terminal. Results go to stdout, progress and errors to stderr."""

from __future__ import annotations

import sys

import msgspec


def line(text: str = "") -> None:
    """Write a result line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def piece(text: str) -> None:
    """Write a part of a line at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def note(text: str) -> None:
    """Tell the person at the terminal what is going on."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def progress(text: str) -> None:
    """Overwrite the current line of a terminal; silent where stderr is a file."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[2K{text}")
        sys.stderr.flush()


def progress_done() -> None:
    """Clear the progress line."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[2K")
        sys.stderr.flush()


def json_document(value: object) -> None:
    """Write a value as indented JSON."""
    line(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def error(message: str, hint: str = "") -> None:
    """Report an error that the user can repair."""
    note(f"headrace: {message}")
    if hint:
        note(f"  → {hint}")
