"""`headrace model quantize`: finds out at once whether it can be done here, then has it done by a Python that has llm-compressor."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from services.console import output
from services.console.settings import ConsoleSettings
from shared.errors import HeadraceError, UserError
from shared.models.files import CONFIG
from shared.models.store import Model, resolve
from shared.processes.child import die_with_parent

PROGRAM = Path(__file__).resolve().parents[2] / "engine" / "adapters" / "awq_quantize.py"
"""Run by its path: the other environment has none of our packages."""
ENVIRONMENT = "quantize"
"""Folder in `HEADRACE_HOME` where its environment is looked for."""
LAST_WITHOUT_ACCELERATOR = (0, 12)
"""From 0.13 on AWQ pins memory for an accelerator, and fails where there is none."""
ENVIRON = {"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}
"""No bars of progress; and threads that spin while they wait take four times as long on a machine that has other work."""
CHECK_S = 120.0
ERRORS_BYTES = 64 << 10
ERROR = re.compile(r"\w[\w.]*(Error|Exception)\b")
SIZES = ("hidden_size", "intermediate_size", "moe_intermediate_size")
SMALLEST_GROUP = 16


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a Python has of what is needed."""

    packages: dict[str, str | None]
    """Versions; none: it is missing."""
    accelerator: bool = False


def quantize(options: argparse.Namespace, settings: ConsoleSettings) -> int:
    """Quantize a model and say where it is; return the exit code. Raises `UserError`, `HeadraceError`."""
    model = resolve(options.model, settings.models)
    out = Path(options.out).expanduser().absolute()
    check_shape(_config(model), options.group_size)
    _check_place(model, out)
    text = _text(options.calibration)
    python = _python(options.python, settings)
    env = {**ENVIRON, **settings.environment, "HF_HUB_OFFLINE": "1"}
    check_found(asyncio.run(_find(python, env)), python)
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    words = [str(model.path), str(partial), str(options.bits), str(options.group_size), *text]
    try:
        asyncio.run(_run(python, words, env, timeout_s=options.timeout))
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    output.note(f"check it: headrace validate-model --model {out} --reference {model.path}")
    output.line(str(out))
    return 0


def check_shape(config: Mapping[str, Any], group_size: int) -> None:
    """Raise `UserError` where the model's matrices cannot be cut into such groups, or are quantized already."""
    if "quantization_config" in config:
        raise UserError(
            "the model is quantized already", hint="give the model that it was quantized from"
        )
    nested = config.get("text_config")
    text = nested if isinstance(nested, dict) else config
    widths = [text[name] for name in SIZES if isinstance(text.get(name), int)]
    heads, of_head = text.get("num_attention_heads"), text.get("head_dim")
    if isinstance(heads, int) and isinstance(of_head, int):
        widths.append(heads * of_head)
    unfit = [width for width in widths if width % group_size]
    if not unfit:
        return
    fitting = group_size
    while fitting >= SMALLEST_GROUP and any(width % fitting for width in widths):
        fitting //= 2
    raise UserError(
        f"groups of {group_size} do not fit: the model has rows of {unfit[0]}",
        hint=f"--group-size {fitting}"
        if fitting >= SMALLEST_GROUP
        else "no group size fits this model",
    )


def check_found(found: Found, python: Path) -> None:
    """Raise `UserError` where a Python lacks what is needed, or has a version that cannot work here."""
    lacking = [name for name, version in found.packages.items() if version is None]
    how = (
        "make an environment of its own, as docs/how-to/check-a-model.md says, and name it:"
        " --python DIR/bin/python"
    )
    if lacking:
        raise UserError(f"{python} has no {', '.join(lacking)}", hint=how)
    version = found.packages["llmcompressor"] or ""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if not found.accelerator and numbers > LAST_WITHOUT_ACCELERATOR:
        raise UserError(
            f"llmcompressor {version} needs an accelerator for AWQ, and torch finds none here",
            hint='install "llmcompressor<0.13" there',
        )


def _config(model: Model) -> Mapping[str, Any]:
    config = json.loads((model.path / CONFIG).read_text())
    assert isinstance(config, dict), "the model's files were looked at"
    return config


def _check_place(model: Model, out: Path) -> None:
    if out.exists():
        raise UserError(f"{out} is there already", hint="give a folder that is not there yet")
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent}", hint="make it, or choose another --out")
    free = shutil.disk_usage(out.parent).free
    if free < model.weight_bytes:
        raise UserError(
            f"{out.parent} has {free >> 20} MiB free and may need {model.weight_bytes >> 20}",
            hint="choose another --out",
        )


def _text(name: str | None) -> list[str]:
    if name is None:
        return []
    path = Path(name).expanduser().absolute()
    try:
        path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--calibration {name}: {error}", hint="give a text file") from error
    return [str(path)]


def _python(name: str | None, settings: ConsoleSettings) -> Path:
    """Return the Python to use: the one that is named, that of the environment for it, or ours."""
    if name is not None:
        python = Path(name).expanduser().absolute()
        if not python.is_file():
            raise UserError(f"--python {name}: there is no such program")
        return python
    own = settings.home / ENVIRONMENT / "bin" / "python"
    return own if own.is_file() else Path(sys.executable)


async def _find(python: Path, env: Mapping[str, str]) -> Found:
    said = await _run(python, ["check"], env, timeout_s=CHECK_S)
    return msgspec.json.decode(said, type=Found)


async def _run(python: Path, words: list[str], env: Mapping[str, str], *, timeout_s: float) -> str:
    """Run the program, pass its steps on, and return its last line. Raises `HeadraceError`."""
    process = await asyncio.create_subprocess_exec(
        *(str(python), "-P", str(PROGRAM), *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(env),
        preexec_fn=die_with_parent,
    )
    try:
        async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as group:
            errors = group.create_task(_tail(process.stderr))
            steps = group.create_task(_steps(process.stdout, is_shown=words != ["check"]))
            await process.wait()
    except TimeoutError as error:
        raise HeadraceError(f"not done within {timeout_s:.0f} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise HeadraceError(f"the quantization {_how(process.returncode, errors.result())}")
    return steps.result()


def _how(returncode: int, errors: str) -> str:
    """Return how a process ended that failed: by a signal, or by the last error that Python told."""
    if returncode < 0:
        return f"was ended by {signal.Signals(-returncode).name}; if nobody did, memory ran out"
    told = [line.strip() for line in errors.splitlines() if ERROR.match(line)]
    return f"failed: {told[-1]}" if told else f"failed with code {returncode}"


async def _steps(lines: asyncio.StreamReader | None, *, is_shown: bool) -> str:
    assert lines is not None
    last = ""
    async for raw in lines:
        last = raw.decode(errors="replace").strip()
        if is_shown:
            output.note(last)
    return last


async def _tail(lines: asyncio.StreamReader | None) -> str:
    assert lines is not None
    kept = b""
    while chunk := await lines.read(1 << 16):
        kept = (kept + chunk)[-ERRORS_BYTES:]
    return kept.decode(errors="replace")
