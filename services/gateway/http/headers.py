"""Header fields of one request: case-insensitive, decoded only when asked for. Does not check syntax; the parser did."""

from __future__ import annotations

from collections.abc import Iterator

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

    def __init__(self) -> None:
        self._fields: dict[bytes, bytes] = {}

    def add(self, name: bytes, value: bytes) -> None:
        """Add a field as it came off the wire; raise `DuplicateHeader`."""
        name = name.lower()
        present = self._fields.get(name)
        if present is None:
            self._fields[name] = value.rstrip(b" \t")
            return
        if name in SINGLE:
            raise DuplicateHeader(name.decode("ascii"))
        joint = b"; " if name == b"cookie" else b", "
        self._fields[name] = present + joint + value.rstrip(b" \t")

    def raw(self, name: bytes) -> bytes | None:
        """Return a value by its lower-case name, undecoded."""
        return self._fields.get(name)

    def get(self, name: str) -> str | None:
        """Return a value, decoded as Latin-1 (which no byte can fail), or None."""
        value = self._fields.get(name.lower().encode("latin-1", "replace"))
        return None if value is None else value.decode("latin-1")

    def items(self) -> Iterator[tuple[str, str]]:
        """Yield lower-case names and values in order of arrival."""
        return ((n.decode("latin-1"), v.decode("latin-1")) for n, v in self._fields.items())

    def __len__(self) -> int:
        return len(self._fields)

    @override
    def __repr__(self) -> str:
        return f"Headers({', '.join(name.decode('latin-1') for name in self._fields)})"
