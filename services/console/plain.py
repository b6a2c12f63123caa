"""Texts of others as a terminal may show them: what would move its cursor, colour it, or turn the direction of text is spelled out. Pure.

Names, reasons and answers come from callers, models and whoever may write to the bus.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

T = TypeVar("T")

_UNSHOWN = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
)
_IN_TEXT = re.compile(f"[{_UNSHOWN}]")
_IN_NAME = re.compile(f"[\t\n{_UNSHOWN}]")


def plain(text: str) -> str:
    """Return a text of any number of lines without control characters; each is spelled as in `\\x1b`."""
    return text if text.isprintable() else _IN_TEXT.sub(_spelled, text)


def one_line(text: str) -> str:
    """Return a name, which is one line, likewise."""
    return text if text.isprintable() else _IN_NAME.sub(_spelled, text)


def in_json(document: str) -> str:
    """Return a JSON document with the same values: what a terminal might obey stands as an escape."""
    return _IN_TEXT.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def cleaned(value: T) -> T:
    """Return a message with all its texts as `one_line`; the same where nothing had to be changed."""
    made: object = value
    match value:
        case str():
            made = one_line(value)
        case msgspec.Struct():
            made = _cleaned_struct(value)
        case list():
            made = [cleaned(item) for item in value]
        case tuple():
            made = tuple(cleaned(item) for item in value)
        case dict():
            made = {cleaned(key): cleaned(item) for key, item in value.items()}
        case _:
            pass
    return value if made == value else made  # type: ignore[return-value] # of the same type


def _cleaned_struct(value: msgspec.Struct) -> msgspec.Struct:
    fields = {name: getattr(value, name) for name in value.__struct_fields__}
    changed = {
        name: made for name, field in fields.items() if (made := cleaned(field)) is not field
    }
    return msgspec.structs.replace(value, **changed) if changed else value


def _spelled(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}"  # noqa: PLR2004 - as Python spells them
