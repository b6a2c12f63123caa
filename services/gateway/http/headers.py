"""Header fields of one request: case-insensitive, decoded only when asked for. Does not check syntax; the parser did."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from typing_extensions import override

SINGLE = frozenset(
    (b"authorization", b"content-length", b"content-type", b"expect", b"host", b"transfer-encoding")
)
"""Fields whose repetition makes a request ambiguous, so that two readers could see two requests."""


class DuplicateHeader(ValueError):
    """A field that must be single came twice; the argument is its name."""


class Headers:
    """Fields by lower-case name. A repeated field is one value joined by commas (cookies by semicolons), as RFC 9110 has it."""

    __slots__ = ("_fields",)

    def __init__(self, lines: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Take fields as they came off the wire; raise `DuplicateHeader`."""
        fields: dict[bytes, bytes] = {}
        for name, value in lines:
            key = name.lower()
            fields[key] = _joined(key, fields[key], value) if key in fields else value
        self._fields = fields

    def raw(self, name: bytes) -> bytes | None:
        """Return a value by its lower-case name, undecoded."""
        value = self._fields.get(name)
        # llhttp leaves the whitespace behind a value.
        return None if value is None else value.rstrip(b" \t")

    def get(self, name: str) -> str | None:
        """Return a value, decoded as Latin-1 (which no byte can fail), or None."""
        value = self._fields.get(_key(name))
        return None if value is None else value.rstrip(b" \t").decode("latin-1")

    def items(self) -> Iterator[tuple[str, str]]:
        """Yield lower-case names and values in order of arrival."""
        for name, value in self._fields.items():
            yield name.decode("latin-1"), value.rstrip(b" \t").decode("latin-1")

    @override
    def __repr__(self) -> str:
        return f"Headers({', '.join(name.decode('latin-1') for name in self._fields)})"


@lru_cache(maxsize=256)
def _key(name: str) -> bytes:
    """Return how a field is called here; code asks for the same few again and again."""
    return name.lower().encode("latin-1", "replace")


def _joined(name: bytes, present: bytes, value: bytes) -> bytes:
    if name in SINGLE:
        raise DuplicateHeader(name.decode("ascii"))
    return present.rstrip(b" \t") + (b"; " if name == b"cookie" else b", ") + value
