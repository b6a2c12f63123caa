"""A record as it was read: what it says, and which state of its key that is. Pure."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from shared.messages import Message

M = TypeVar("M", bound=Message)


class Entry(msgspec.Struct, Generic[M], frozen=True):
    """A record, and the state of its key that it is."""

    record: M
    revision: int
    """Rises with each write to the bucket."""
