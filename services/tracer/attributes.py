"""Attributes of spans: values with names, groups of them that many traces share, and those that must not leave. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from services.tracer.names import SAME_VALUE

AttributeValue = str | bool | int | float | tuple[str, ...]
Attributes = Sequence[tuple[str, AttributeValue]]


class Group:
    """Attributes that are the same for many traces. Compared by identity, so that whoever encodes them can remember the result."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: Attributes) -> None:
        self.pairs = tuple(pairs)


class Hidden:
    """The names to hide: `layer.attention` hides `layer.attention.heads` too, and a name hides others that hold the same value."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        wanted = {*names, *(same for name in names for same in SAME_VALUE.get(name, ()))}
        self._exact = frozenset(wanted)
        self._prefixes = tuple(f"{name}." for name in wanted)

    def hides(self, name: str) -> bool:
        """Return whether this attribute must not leave."""
        return name in self._exact or name.startswith(self._prefixes)

    def shown(self, attributes: Attributes) -> Attributes:
        """Return those that may leave."""
        if not self._exact:
            return attributes
        return [pair for pair in attributes if not self.hides(pair[0])]


NOTHING_HIDDEN = Hidden()
