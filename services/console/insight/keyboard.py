"""Single keys from a terminal, while a picture is shown there. Does nothing where the input is no terminal."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

KEYS_BYTES = 64


@contextmanager
def keys(on_key: Callable[[str], None]) -> Iterator[None]:
    """Call `on_key` with each key pressed within; the terminal is as before afterwards. Must run on the loop."""
    if not sys.stdin.isatty():
        yield
        return
    loop, file = asyncio.get_running_loop(), sys.stdin.fileno()

    def read() -> None:
        for key in os.read(file, KEYS_BYTES).decode(errors="replace"):
            on_key(key)

    before = termios.tcgetattr(file)
    tty.setcbreak(file)
    loop.add_reader(file, read)
    try:
        yield
    finally:
        loop.remove_reader(file)
        termios.tcsetattr(file, termios.TCSADRAIN, before)
