"""The command line in this process, whose logs are afterwards what they were: its own go to a stream that ends with the test."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from services.console import cli


def main(words: Sequence[str]) -> int:
    """Run a command and return its exit code."""
    try:
        return cli.main(words)
    finally:
        structlog.reset_defaults()
