"""From a document (tables, lists, texts, numbers) to an `LLMService`, or to everything that is wrong with it at once. Pure.

Keys are taken in camelCase and snake_case, words with and without a plural s.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from typing_extensions import override

from shared.errors import UserError
from shared.spec import model
from shared.spec.checks import contradictions
from shared.spec.fields import Field, Table
from shared.spec.tables import METADATA, SPEC_FIELDS

Path = tuple[str | int, ...]
"""Keys as they are written, and places in lists."""

MAX_SHOWN = 60
MAX_PROBLEMS = 50


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong."""

    path: Path
    text: str
    hint: str = ""

    @override
    def __str__(self) -> str:
        """Return a line for people."""
        where = f"{dotted(self.path)}: " if self.path else ""
        return f"{where}{self.text}" + (f"; {self.hint}" if self.hint else "")


class SpecError(UserError):
    """A document is no `LLMService`."""

    def __init__(self, problems: list[Problem], lines: list[str]) -> None:
        more = len(lines) - MAX_PROBLEMS
        shown = [*lines[:MAX_PROBLEMS], *([f"and {more} more"] if more > 0 else [])]
        super().__init__("\n".join(shown))
        self.problems = problems


def dotted(path: Path) -> str:
    """Return a path as people write it: `spec.slo.latency[0].threshold`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def from_document(document: object) -> model.LLMService:
    """Return the service that a document declares. Raises `SpecError` that lists all problems."""
    spec, problems = read(document)
    if spec is None:
        raise SpecError(problems, [str(problem) for problem in problems])
    return spec


def read(document: object) -> tuple[model.LLMService | None, list[Problem]]:
    """Return the service, or none and what is wrong."""
    reader = _Reader()
    spec = reader.service(document)
    if spec is not None and not reader.problems:
        spelled = reader.spelled
        reader.problems += [
            Problem(_as_written(spelled, path), text, hint)
            for path, text, hint in contradictions(spec)
        ]
    return (None if reader.problems else spec), reader.problems


def plain_key(key: str) -> str:
    """Return a key in one spelling: `maxSpansPerRequest` and `max_span_per_request` are the same, as are `targetRPS` and `target_rps`."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", key)
    words = snake.lower().replace("-", "_").split("_")
    return "".join(word.removesuffix("s") for word in words)


def shown(value: object) -> str:
    """Return a value for a message, cut short."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


def _as_written(spelled: dict[Path, str], path: tuple[str, ...]) -> Path:
    """Return a path of canonical keys with the keys as they stand in the document, as far as they stand there."""
    found: list[str] = []
    for length in range(1, len(path) + 1):
        written = spelled.get(path[:length])
        if written is None:
            break
        found.append(written)
    return tuple(found)


class _Reader:
    """One document being read."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.spelled: dict[Path, str] = {}
        """Canonical path → the key as written."""

    def service(self, document: object) -> model.LLMService | None:
        top = self._known(document, ("apiVersion", "kind", "metadata", "spec"), (), ())
        if top is None:
            return None
        for key, wanted in (("apiVersion", model.API_VERSION), ("kind", model.KIND)):
            value = top.get(key, (key, None))[1]
            if value != wanted:
                found = "is missing" if value is None else f"{shown(value)} is not known"
                self._problem((key,), found, f"write {key}: {wanted}")
        metadata = self._table(
            METADATA, top.get("metadata", ("metadata", {}))[1], ("metadata",), ("metadata",)
        )
        body = top.get("spec", ("spec", None))[1]
        if body is None:
            self._problem(
                ("spec",), "is missing", "write at least spec: {modelRef: {name: smollm2}}"
            )
            return None
        parts = self._parts(body)
        if metadata is None or parts is None:
            return None
        if "model" not in parts:
            backend = parts.get("engine")
            if not isinstance(backend, model.EngineSpec) or backend.backend == "vllm":
                self._problem(("spec", "modelRef"), "is missing", "write modelRef: {name: smollm2}")
                return None
            parts["model"] = model.ModelRef(name=backend.backend)
        return model.LLMService(metadata=metadata, **parts)

    def _parts(self, body: object) -> dict[str, Any] | None:
        found = self._known(body, tuple(field.key for field in SPEC_FIELDS), ("spec",), ("spec",))
        if found is None:
            return None
        parts: dict[str, Any] = {}
        for field in SPEC_FIELDS:
            if field.key in found:
                written, value = found[field.key]
                read = self._field(field, value, ("spec", written), ("spec", field.key))
                if read is not None:
                    parts[field.attr] = read
        return parts

    def _known(
        self, value: object, keys: tuple[str, ...], path: Path, canonical: tuple[str, ...]
    ) -> dict[str, tuple[str, object]] | None:
        """Return canonical key → (key as written, value); keys that are not known are problems."""
        if not isinstance(value, Mapping):
            self._problem(
                path,
                f"{shown(value)} is no table of keys and values",
                f"known keys are {', '.join(keys)}",
            )
            return None
        by_plain = {plain_key(key): key for key in keys}
        found: dict[str, tuple[str, object]] = {}
        for written, item in value.items():
            key = by_plain.get(plain_key(written)) if isinstance(written, str) else None
            if key is None:
                self._problem(
                    (*path, str(written)), "there is no such key", _near(str(written), keys)
                )
            elif key in found:
                self._problem(
                    (*path, str(written)), f"stands there as {found[key][0]} already", "keep one"
                )
            else:
                found[key] = (str(written), item)
                self.spelled[(*canonical, key)] = str(written)
        return found

    def _field(self, field: Field, value: object, path: Path, canonical: tuple[str, ...]) -> Any:
        if field.table is not None and field.many:
            return self._tables(field.table, value, path, canonical)
        if field.table is not None:
            return self._table(field.table, value, path, canonical)
        assert field.kind is not None
        try:
            return field.kind.read(value)
        except ValueError:
            self._problem(path, f"{shown(value)} does not fit", field.kind.hint)
            return None

    def _tables(self, table: Table, value: object, path: Path, canonical: tuple[str, ...]) -> Any:
        items = value if isinstance(value, list | tuple) else [value]
        several = isinstance(value, list | tuple)
        found = [
            self._table(table, item, (*path, index) if several else path, canonical)
            for index, item in enumerate(items)
        ]
        return tuple(found) if None not in found else None

    def _table(self, table: Table, value: object, path: Path, canonical: tuple[str, ...]) -> Any:
        if table.shorthand and not isinstance(value, Mapping):
            value = {table.shorthand: value}
            shorthand = True
        else:
            shorthand = False
        known = self._known(value, tuple(field.key for field in table.fields), path, canonical)
        if known is None:
            return None
        values = table.defaults()
        before = len(self.problems)
        for field in table.fields:
            if field.key in known:
                written, item = known[field.key]
                where = path if shorthand else (*path, written)
                values[field.attr] = self._field(field, item, where, (*canonical, field.key))
            elif field.attr not in values:
                kind_hint = field.kind.hint if field.kind else ""
                self._problem((*path, field.key), "is missing", kind_hint)
        return table.cls(**values) if len(self.problems) == before else None

    def _problem(self, path: Path, text: str, hint: str) -> None:
        self.problems.append(Problem(path, text, hint))


def _near(key: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(key[:MAX_SHOWN], known, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
