"""What a service's spec says of its traces, and how that is read: camelCase or snake_case, words with or without plural s. Pure.

A value that does not fit is a `UserError` that names the key, what stood there, and what belongs there.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import msgspec

from shared.errors import UserError
from shared.ids import ServiceName
from shared.messages import STAGES

MAX_SPANS = 1000
MAX_TIMEOUT_S = 300.0
_UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_NAME = re.compile(r"[A-Za-z_][\w.-]{0,127}")

V = TypeVar("V")


class Observability(msgspec.Struct, frozen=True, kw_only=True):
    """How a service wants to be traced."""

    sampling_rate: float | None = None
    """Share of the ordinary requests whose traces are kept, 0 to 1; None: by the platform's rule. Failures and the like are kept anyhow."""
    max_spans: int = 50
    """Most spans of one request; the longest stages stay."""
    export_timeout_s: float = 5.0
    """Deadline of handing traces to a collector once."""
    sensitive: tuple[str, ...] = ()
    """Attributes that must not leave, each with all below it (`layer.attention` with `layer.attention.heads`)."""
    slow_s: float | None = None
    """Requests that took longer are kept; None: learned."""
    stages: tuple[str, ...] = ()
    """Stages that get spans; none named: all."""


DEFAULT = Observability()


class Policies(msgspec.Struct, frozen=True, kw_only=True):
    """One `Observability` for each service."""

    default: Observability = DEFAULT
    services: dict[ServiceName, Observability] = {}

    def of(self, service: ServiceName) -> Observability:
        """Return what holds for a service."""
        return self.services.get(service, self.default)


def read_policies(document: object) -> Policies:
    """Return the policies of a document with the keys `default` and `services`. Raises `UserError`."""
    known = ("default", "services")
    tree = _table(document, "the file")
    for key in tree:
        if key not in known:
            raise _unknown("the file", str(key), known)
    default = read_observability(tree.get("default") or {}, where="default")
    services = _table(tree.get("services") or {}, "services")
    return Policies(
        default=default,
        services={
            ServiceName(str(name)): read_observability(
                given or {}, where=f"services.{name}", base=default
            )
            for name, given in services.items()
        },
    )


def read_observability(
    document: object, *, where: str, base: Observability = DEFAULT
) -> Observability:
    """Return the settings in a table; what is not given is taken from `base`. Raises `UserError`."""
    values: dict[str, object] = {}
    spelled: dict[str, str] = {}
    for key, value in _table(document, where).items():
        plain = _plain(str(key))
        if plain not in _READERS:
            raise _unknown(where, str(key), [reader.key for reader in _READERS.values()])
        reader = _READERS[plain]
        if reader.field in values:
            raise UserError(
                f"{where}.{key}: stands there as {spelled[plain]!r} already", hint="keep one"
            )
        spelled[plain] = str(key)
        found = reader.read(value)
        if found is None:
            raise UserError(f"{where}.{key}: {value!r} does not fit", hint=reader.hint)
        values[reader.field] = found
    return msgspec.structs.replace(base, **values)


# --- values: each returns None where what stands there does not fit


def _share(value: object) -> float | None:
    if isinstance(value, str) and (match := _PERCENT.fullmatch(value.strip())):
        share = float(match[1]) / 100
    else:
        number = _number(value)
        if number is None:
            return None
        share = number
    return share if 0.0 <= share <= 1.0 else None


def _duration(value: object) -> float | None:
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        seconds = float(match[1]) * _UNITS_S[match[2]]
    else:
        number = _number(value)
        if number is None:
            return None
        seconds = number
    return seconds if 0.0 < seconds <= MAX_TIMEOUT_S else None


def _count(value: object) -> int | None:
    number = _number(value)
    if number is None or number != int(number):
        return None
    return int(number) if 1 <= number <= MAX_SPANS else None


def _names(value: object) -> tuple[str, ...] | None:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, Iterable) or isinstance(items, Mapping):
        return None
    names = tuple(item.strip() if isinstance(item, str) else "" for item in items)
    return names if all(map(_NAME.fullmatch, names)) else None


def _stages(value: object) -> tuple[str, ...] | None:
    names = _names(value)
    return names if names is not None and set(names) <= {str(stage) for stage in STAGES} else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None


class _Reader(msgspec.Struct, frozen=True):
    key: str
    field: str
    read: Callable[[object], object | None]
    hint: str


def _plain(key: str) -> str:
    """Return a key in one spelling: `maxSpansPerRequest` and `max_span_per_request` are the same."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower().replace("-", "_")
    return "_".join(word.removesuffix("s") for word in snake.split("_"))


_READERS = {
    _plain(reader.key): reader
    for reader in (
        _Reader("sampling_rate", "sampling_rate", _share, "write a share of 0% to 100%, as 20%"),
        _Reader(
            "max_span_per_request",
            "max_spans",
            _count,
            f"write a whole number of 1 to {MAX_SPANS}, as 50",
        ),
        _Reader(
            "trace_export_timeout",
            "export_timeout_s",
            _duration,
            f"write a time above 0 and up to {MAX_TIMEOUT_S:.0f}s, as 5s or 500ms",
        ),
        _Reader(
            "sensitive_attrs",
            "sensitive",
            _names,
            'write a list of attribute names, as ["layer.attention"]',
        ),
        _Reader(
            "trace_stages",
            "stages",
            _stages,
            f"write a list of stages: {', '.join(STAGES)}",
        ),
        _Reader(
            "slow_threshold",
            "slow_s",
            _duration,
            f"write a time above 0 and up to {MAX_TIMEOUT_S:.0f}s, as 2s",
        ),
    )
}


def _table(document: object, where: str) -> Mapping[object, object]:
    if not isinstance(document, Mapping):
        raise UserError(f"{where}: {document!r} is no table of keys and values")
    return document


def _unknown(where: str, key: str, known: Iterable[str]) -> UserError:
    names = list(known)
    near = difflib.get_close_matches(key, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"
    return UserError(f"{where}: there is no key {key!r}", hint=hint)
