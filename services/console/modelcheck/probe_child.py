"""Runs the process that loads a model and asks it: an order in, its lines out, each step within its deadline."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from services.console.settings import ConsoleSettings
from shared.models.probe import PROGRAM, Begun, Broke, Done, Line, Loaded, Order
from shared.processes.child import die_with_parent, log_tail

LINE_BYTES = 256 << 20
"""Of a score of the longest context with all its alternatives."""
EXIT_S = 2.0
"""From the last line to the end of the process: by then the engine is stopped."""
ERROR = re.compile(
    r"(?:\(\S+ pid=\d+\) )?(?:ERROR \S+ \S+ \[[^]]*\] )?(?P<said>\w*(?:Error|Exception): .+)"
)
"""A line in which Python says what went wrong."""
_decode = msgspec.json.Decoder(Line).decode


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """How long a probe may take."""

    load_s: float
    step_s: float
    """Each step after loading."""


async def probe(
    model: Path,
    order: Order,
    engine_args: tuple[str, ...],
    *,
    settings: ConsoleSettings,
    deadlines: Deadlines,
    progress: Callable[[str], None],
) -> list[Line]:
    """Return what a model's process says; a step that breaks or is late stands there as `Broke`. Ends the process in any case."""
    with tempfile.NamedTemporaryFile(prefix="headrace-probe-", suffix=".log") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", PROGRAM, "--vllm-model", str(model), *engine_args),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log.fileno(),
            env={
                **settings.environment,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            },
            start_new_session=True,
            preexec_fn=die_with_parent,
            limit=LINE_BYTES,
        )
        try:
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(order))
            process.stdin.close()
            lines = await _lines(process, deadlines, progress)
        finally:
            await _end(process)
        return [_explained(line, Path(log.name)) for line in lines]


async def _lines(
    process: asyncio.subprocess.Process, deadlines: Deadlines, progress: Callable[[str], None]
) -> list[Line]:
    assert process.stdout is not None
    lines: list[Line] = []
    step, is_loaded = "load", False
    progress("load")
    while True:
        patience_s = deadlines.step_s if is_loaded else deadlines.load_s
        try:
            async with asyncio.timeout(patience_s):
                raw = await process.stdout.readline()
        except TimeoutError:
            return [*lines, Broke(step=step, reason=f"not done within {patience_s:.0f} s")]
        if not raw:
            return [*lines, Broke(step=step, reason="its process ended")]
        line = _decode(raw)
        match line:
            case Done():
                return lines
            case Begun():
                step = line.step
                progress(step)
            case Loaded():
                is_loaded = True
                lines.append(line)
            case _:
                lines.append(line)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Let the process end by itself after its last word, else kill it: its engine ends with it."""
    try:
        async with asyncio.timeout(EXIT_S):
            await process.wait()
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _explained(line: Line, log: Path) -> Line:
    """Return a broken step with what the log says of it."""
    if not isinstance(line, Broke):
        return line
    said = [
        found["said"]
        for row in log_tail(log, lines=400).splitlines()
        if (found := ERROR.search(row))
    ]
    if not said:
        return line
    return Broke(
        step=line.step, reason=f"{line.reason.partition(' (the core')[0]}: {said[-1][:300]}"
    )
