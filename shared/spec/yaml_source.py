"""YAML text → documents whose every value knows its line: bounded, without aliases that grow, without objects, each key once. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from shared.spec import model
from shared.spec.reading import MAX_SHOWN, Path, Problem, SpecError, read

MAX_BYTES = 1 << 20
MAX_NODES = 20_000
"""Values of a file, with those that an alias repeats."""
MAX_DEPTH = 32
MAX_DOCUMENTS = 100

_PLAIN_TAGS = {f"tag:yaml.org,2002:{sort}" for sort in ("null", "bool", "int", "float")}

Marks = dict[Path, tuple[int, int]]
"""Where a key (or an item of a list) stands: line and column, from 1."""


class Source(msgspec.Struct, frozen=True):
    """One document of a file."""

    document: object
    marks: Marks
    line: int


def read_services(text: str, file: str) -> list[model.LLMService]:
    """Return the services of a file. Raises `SpecError` with every problem as `file:line:column: …`."""
    problems: list[Problem] = []
    lines: list[str] = []
    services: list[model.LLMService] = []
    for source in documents(text, file):
        spec, found = read(source.document)
        problems += found
        lines += [_line(problem, source, file) for problem in found]
        if spec is not None:
            services.append(spec)
    names = [spec.name for spec in services]
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.append(Problem((), f"{name!r} is declared twice"))
        lines.append(f"{file}: {name!r} is declared twice; keep one, or rename the other")
    if problems:
        raise SpecError(problems, lines)
    if not services:
        raise _refuse(
            file, 1, 1, "there is no document", "write an LLMService; examples/minimal.yaml is one"
        )
    return services


def documents(text: str, file: str) -> list[Source]:
    """Return the documents of a YAML text; empty ones are left out. Raises `SpecError`."""
    if len(text) > MAX_BYTES:
        raise _refuse(file, 1, 1, f"is longer than {MAX_BYTES} characters", "split it")
    found: list[Source] = []
    try:
        loader = yaml.SafeLoader(text)
        try:
            while loader.check_node():
                node = loader.get_node()
                if len(found) >= MAX_DOCUMENTS:
                    raise _refuse(
                        file, 1, 1, f"has more than {MAX_DOCUMENTS} documents", "split it"
                    )
                builder = _Builder(loader, file)
                document = builder.value(node, (), 0)
                if document is not None:
                    found.append(Source(document, builder.marks, node.start_mark.line + 1))
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise _refuse(
            file, line, column, f"is no YAML: {error.problem or error.context}", ""
        ) from error
    except yaml.YAMLError as error:
        raise _refuse(file, 1, 1, f"is no YAML: {str(error)[:200]}", "") from error
    except RecursionError as error:
        raise _refuse(file, 1, 1, f"is nested deeper than {MAX_DEPTH}", "") from error
    return found


class _Builder:
    """One document being built from its nodes."""

    def __init__(self, loader: Any, file: str) -> None:
        self.marks: Marks = {}
        self._loader = loader
        self._file = file
        self._left = MAX_NODES

    def value(self, node: yaml.Node, path: Path, depth: int) -> object:
        """Return what a node says. Raises `SpecError`."""
        line, column = node.start_mark.line + 1, node.start_mark.column + 1
        self._left -= 1
        if self._left < 0 or depth > MAX_DEPTH:
            bound = (
                f"has more than {MAX_NODES} values"
                if self._left < 0
                else f"is nested deeper than {MAX_DEPTH}"
            )
            raise _refuse(self._file, line, column, bound, "aliases count each time")
        self.marks.setdefault(path, (line, column))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            return [
                self.value(item, (*path, index), depth + 1) for index, item in enumerate(node.value)
            ]
        return self._scalar(node, line, column)

    def _mapping(self, node: yaml.MappingNode, path: Path, depth: int) -> dict[str, object]:
        found: dict[str, object] = {}
        for key_node, value_node in node.value:
            line, column = key_node.start_mark.line + 1, key_node.start_mark.column + 1
            if (
                not isinstance(key_node, yaml.ScalarNode)
                or key_node.tag == "tag:yaml.org,2002:merge"
            ):
                raise _refuse(
                    self._file,
                    line,
                    column,
                    "a key must be a plain word",
                    "merge keys (<<) are not taken",
                )
            key = str(key_node.value)
            if key in found:
                raise _refuse(
                    self._file, line, column, f"{key[:MAX_SHOWN]!r} stands there twice", "keep one"
                )
            where = (*path, key)
            self.marks[where] = (line, column)
            found[key] = self.value(value_node, where, depth + 1)
        return found

    def _scalar(self, node: yaml.Node, line: int, column: int) -> object:
        text = str(node.value)
        # Dates, clock times and the like: what was written is what is meant.
        if node.tag not in _PLAIN_TAGS or ":" in text:
            return text
        try:
            value: object = self._loader.construct_object(node)
        except (yaml.YAMLError, ValueError, LookupError, OverflowError) as error:
            hint = "put it in quotes"
            raise _refuse(
                self._file, line, column, f"cannot read {text[:MAX_SHOWN]!r}", hint
            ) from error
        return value


def _line(problem: Problem, source: Source, file: str) -> str:
    path = problem.path
    while path and path not in source.marks:
        path = path[:-1]
    line, column = source.marks.get(path, (source.line, 1))
    return f"{file}:{line}:{column}: {problem}"


def _refuse(file: str, line: int, column: int, text: str, hint: str) -> SpecError:
    problem = Problem((), text, hint)
    return SpecError([problem], [f"{file}:{line}:{column}: {problem}"])
