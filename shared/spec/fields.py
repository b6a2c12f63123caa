"""What tables of a document are made of: a key, the attribute that it becomes, and what belongs there. Pure."""

from __future__ import annotations

import re

import msgspec

from shared.spec import model
from shared.spec.kinds import Kind, Number, Text

DAY_S = 86_400.0
NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}"
_CRON_FIELD = r"(?:\*|\d{1,2}(?:-\d{1,2})?)(?:/\d{1,2})?"
_CRON_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One key of a table."""

    key: str
    attr: str
    about: str
    kind: Kind | None = None
    table: Table | None = None
    many: bool = False
    """A list of tables; one alone may stand without the list."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table and the values that it becomes."""

    cls: type[model.Part]
    fields: tuple[Field, ...]
    shorthand: str = ""
    """Key of what a value that is no table stands for: `availability: 99.9%`."""

    def defaults(self) -> dict[str, object]:
        """Return the values of keys that do not stand there; keys without one are required."""
        found: dict[str, object] = {}
        for field in msgspec.structs.fields(self.cls):
            if field.default is not msgspec.NODEFAULT:
                found[field.name] = field.default
            elif field.default_factory is not msgspec.NODEFAULT:
                found[field.name] = field.default_factory()
        return found


def is_cron(text: str) -> bool:
    """Return whether a text is a cron schedule of five fields within their bounds."""
    fields = text.split()
    if len(fields) != len(_CRON_BOUNDS):
        return False
    for field, (lowest, highest) in zip(fields, _CRON_BOUNDS, strict=True):
        for part in field.split(","):
            if not re.fullmatch(_CRON_FIELD, part):
                return False
            span, _, step = part.partition("/")
            numbers = [int(number) for number in span.split("-") if number != "*"]
            if any(not lowest <= number <= highest for number in numbers) or numbers != sorted(
                numbers
            ):
                return False
            if step and int(step) == 0:
                return False
    return True


def field(key: str, attr: str, kind: Kind, about: str) -> Field:
    """Return a key with one value."""
    return Field(key=key, attr=attr, kind=kind, about=about)


def part(key: str, attr: str, table: Table, about: str, *, many: bool = False) -> Field:
    """Return a key with a table of its own."""
    return Field(key=key, attr=attr, table=table, about=about, many=many)


def name(what: str) -> Text:
    """Return the kind of a name that can be part of a subject of the bus."""
    return Text(f"write {what}: letters, digits, - and _, 63 at most", pattern=NAME)


def count(example: str) -> Number:
    """Return the kind of a number of replicas."""
    return Number(0, 10_000, example=example, whole=True)
