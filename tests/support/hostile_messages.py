"""Messages of any kind, made from their types: mostly sensible values, and among them what somebody who means harm would send."""

from __future__ import annotations

import enum
import random
import types
import typing
from typing import Any

import msgspec

from shared.codec import decode, encode
from shared.errors import Undecodable, UserError
from shared.messages import ROUTES, Message
from shared.subjects import subject_of

ESCAPES = "\x1b[2J\x1b[31mgone\x1b]0;title\x07"
TEXTS = (
    *("", ESCAPES, "a\nb\rc\td", "\x9b31m", "x" * 5_000, "\u202eolleh\u2066", "\u2028", "\0"),
    *("😀" * 50, "{}%s%n", "default", "00-zz-", "e1", "m"),
)
NUMBERS = (-1, -(2**63), 2**31, 2**53 + 1, 2**63, 2**64 - 1)
FIGURES = (-1.0, float("nan"), float("inf"), float("-inf"), 1e300)
BYTES = (b"", b"\0", b"\xff\xff\xff", b"\0\x7c", b"x" * 16, b"x" * 8)


class Maker:
    """Makes values of any type of the contract, from a seed."""

    def __init__(self, seed: int, *, harm: float) -> None:
        self._rng = random.Random(seed)
        self._harm = harm

    def decoded(self, kind: type[Message]) -> Message | None:
        """Return a message as its reader gets it; None where its reader would not."""
        try:
            message = decode(kind, encode(self._make(kind, harm=self._harm)))
            if kind in ROUTES:
                subject_of(kind)(message)
        except (Undecodable, UserError, OverflowError):
            return None
        return message

    def _make(self, kind: Any, *, harm: float) -> Any:  # noqa: PLR0911 - one for each form of type
        origin, inner = typing.get_origin(kind), typing.get_args(kind)
        if isinstance(kind, typing.NewType):
            return self._make(kind.__supertype__, harm=harm)
        if origin is typing.Annotated:
            bounds = inner[1]
            if bounds.min_length is not None and self._rng.random() >= harm:
                element = typing.get_args(inner[0])[0]
                return [self._make(element, harm=harm) for _ in range(bounds.min_length)]
            return self._make(inner[0], harm=harm)
        if origin is typing.Literal:
            return self._rng.choice(inner)
        if origin in (typing.Union, types.UnionType):
            return self._make(self._rng.choice(inner), harm=harm)
        if origin in (list, tuple, dict):
            return self._several(origin, inner, harm)
        if issubclass(kind, msgspec.Struct):
            return self._struct(kind, harm)
        return self._one(kind, harm)

    def _several(self, origin: Any, inner: tuple[Any, ...], harm: float) -> Any:
        size = self._rng.choice((0, 1, 2, 5))
        if origin is dict:
            key, value = inner
            return {self._make(key, harm=harm): self._make(value, harm=harm) for _ in range(size)}
        return origin(self._make(inner[0], harm=harm) for _ in range(size))

    def _struct(self, kind: type[msgspec.Struct], harm: float) -> msgspec.Struct:
        return kind(
            **{
                field.name: self._make(field.type, harm=harm)
                for field in msgspec.structs.fields(kind)
                if field.required or self._rng.random() < 0.6
            }
        )

    def _one(self, kind: type, harm: float) -> Any:
        rng, is_harmful = self._rng, self._rng.random() < harm
        if issubclass(kind, enum.Enum):
            return rng.choice(list(kind))
        if kind is bool:
            return rng.random() < 0.5
        if kind is int:
            return rng.choice(NUMBERS) if is_harmful else rng.choice((0, 1, 7, 200, 10**6))
        if kind is float:
            return rng.choice(FIGURES) if is_harmful else rng.choice((0.0, 0.5, 12.0, 1e9))
        if kind is str:
            # A text does no harm to who only decodes it, so there may be more of these.
            return rng.choice(TEXTS) if rng.random() < 0.3 else rng.choice(("e1", "m", "chat"))
        return rng.choice(BYTES) if kind is bytes else None
