"""Libraries without their optional parts: what nobody here uses need not cost each process a tenth of a second of its start."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Let what is imported meanwhile find these modules missing, unless they are imported already.

    For modules that a library takes if they are there, and does without if not.
    """
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type] # None: how Python itself marks what cannot be imported
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
