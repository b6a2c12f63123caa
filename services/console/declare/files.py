"""The services that files declare, all checked before any is applied. Raises `UserError` with every problem that was found."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import yaml

from shared.errors import UserError
from shared.spec.model import LLMService
from shared.spec.rules import prometheus_rules
from shared.spec.yaml_source import MAX_BYTES, read_services

ENDINGS = {".yaml", ".yml", ".json"}
STDIN = "-"
PROMTOOL_S = 20.0


class Found(msgspec.Struct, frozen=True):
    """A service, and the file that declares it."""

    spec: LLMService
    source: str


def read(sources: list[str]) -> list[Found]:
    """Return the services of files, folders and standard input, in that order. Raises `UserError`."""
    found: list[Found] = []
    problems: list[str] = []
    for name, text in _texts(sources):
        try:
            found += [Found(spec, name) for spec in read_services(text, name)]
        except UserError as error:
            problems.append(str(error))
    where: dict[str, str] = {}
    for one in found:
        if one.spec.name in where:
            problems.append(
                f"{one.source}: {one.spec.name!r} is declared in {where[one.spec.name]} already"
            )
        where[one.spec.name] = one.source
    if problems:
        raise UserError("\n".join(problems), hint="nothing was applied")
    return found


def _texts(sources: list[str]) -> Iterator[tuple[str, str]]:
    for source in sources:
        if source == STDIN:
            yield "standard input", sys.stdin.read(MAX_BYTES + 1)
            continue
        path = Path(source)
        files = sorted(_files(path)) if path.is_dir() else [path]
        if not files:
            raise UserError(f"there is no YAML file in {path}", hint="give another folder")
        for file in files:
            yield str(file), _text(file)


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in folder.iterdir() if file.suffix in ENDINGS and file.is_file())


def _text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return stream.read(MAX_BYTES + 1).decode()
    except OSError as error:
        raise UserError(
            f"cannot read {file}: {error.strerror}", hint="give a file that is there"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is no text in UTF-8: {error}", hint="save it as UTF-8") from error


def check_expressions(found: list[Found], program: str | None) -> str:
    """Check that rules can be made of custom metrics and promises, and their PromQL by promtool; return a remark where that is not here.

    Raises `UserError`.
    """
    for one in found:
        try:
            prometheus_rules([one.spec])
        except UserError as error:
            raise UserError(
                f"{one.source}: {error}", hint=error.hint or "nothing was applied"
            ) from error
    told = [one for one in found if one.spec.observability.custom_metrics]
    if not told:
        return ""
    if program is None:
        return "customMetrics were not checked: promtool (of Prometheus) is not installed"
    for one in told:
        _check(program, one)
    return ""


def _check(program: str, one: Found) -> None:
    metrics = one.spec.observability.custom_metrics
    for number, metric in enumerate(metrics):
        rules = {
            "groups": [
                {"name": "custom", "rules": [{"record": metric.name, "expr": metric.expression}]}
            ]
        }
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(yaml.safe_dump(rules))
            file.flush()
            try:
                done = subprocess.run(
                    [program, "check", "rules", file.name],
                    capture_output=True,
                    text=True,
                    timeout=PROMTOOL_S,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise UserError(
                    f"cannot run {program}: {error}", hint="repair or remove it"
                ) from error
        if done.returncode:
            said = (done.stderr or done.stdout).replace(f"{file.name}:", "").strip()
            last = said.splitlines()[-1].strip() if said else "no reason given"
            raise UserError(
                f"{one.source}: spec.observability.customMetrics[{number}].expression: {last}",
                hint="nothing was applied",
            )
