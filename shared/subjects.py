"""Subjects from routes: the exact one of a message, and the pattern that a subscription listens on.

The only place that turns ids into parts of a subject; what cannot be one is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter

from shared.errors import Undecodable, UserError
from shared.messages import ROUTES, Message

MAX_TOKEN_CHARS = 128
"""Far below the server's limit of a control line (4,096 bytes) for four of them in a subject."""

_FIELD = re.compile(r"\{(\w+)\}")
_LEGAL_TOKEN = re.compile(
    r"[^\s.*>\x00-\x20\x7f-\xa0\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]+"
)
"""No spaces, nothing that controls a terminal, nothing that turns the direction of text: these names are shown to people."""

SubjectOf = Callable[[Message], str]


@lru_cache(maxsize=65_536)
def token(value: str) -> str:
    """Return the value, which can be one part of a subject. Raises `UserError`: names of services come from people."""
    if not _LEGAL_TOKEN.fullmatch(value) or len(value) > MAX_TOKEN_CHARS:
        raise UserError(
            f"{value[:MAX_TOKEN_CHARS]!r} cannot be part of a NATS subject",
            hint=f"use 1 to {MAX_TOKEN_CHARS} characters without spaces, '.', '*' and '>'",
        )
    return value


def fields_of(kind: type[Message]) -> tuple[str, ...]:
    """Return the names of the message's fields that its subject is made of."""
    return tuple(_FIELD.findall(ROUTES[kind].subject))


def pattern(kind: type[Message], keys: dict[str, str]) -> str:
    """Return the subject to listen on: fields in `keys` are fixed, the others match anything."""
    unknown = keys.keys() - set(fields_of(kind))
    if unknown:
        raise TypeError(f"{kind.__name__} has no {sorted(unknown)} in {ROUTES[kind].subject!r}")
    return fill(ROUTES[kind].subject, keys)


def fill(template: str, keys: dict[str, str]) -> str:
    """Return the template with its `{field}`s replaced by the given values, else by `*`."""
    return _FIELD.sub(lambda m: token(keys[m[1]]) if m[1] in keys else "*", template)


def subject_of(kind: type[Message]) -> SubjectOf:
    """Return a function that computes the exact subject of a message of this type."""
    template = _FIELD.sub("%s", ROUTES[kind].subject.replace("%", "%%"))
    names = fields_of(kind)
    read = attrgetter(*names)
    if len(names) == 1:
        return lambda message: template % token(read(message))
    return lambda message: template % tuple(map(token, read(message)))


_subjects: dict[type[Message], SubjectOf] = {kind: subject_of(kind) for kind in ROUTES}


def check_subject(message: Message, subject: str) -> None:
    """Raise `Undecodable` where a message came on another subject than the one that its own fields name."""
    try:
        own = _subjects[type(message)](message)
    except UserError as error:
        raise Undecodable(f"{type(message).__name__}: {error}") from error
    if own != subject:
        raise Undecodable(f"{type(message).__name__}: came on {subject!r} and says {own!r}")


def matches(pattern_parts: list[str], subject_parts: list[str]) -> bool:
    """Return whether a subject, split at its dots, belongs to a pattern, split likewise."""
    if len(pattern_parts) > len(subject_parts):
        return False
    for index, part in enumerate(pattern_parts):
        if part == ">":
            return True
        if part not in ("*", subject_parts[index]):
            return False
    return len(pattern_parts) == len(subject_parts)
