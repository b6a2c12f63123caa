"""`headrace blackbox`: what an engine that died wrote last: its steps, its memory, who was running."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from shared.blackbox.layout import ProcessMemory, Second
from shared.blackbox.report import GIB, Report
from shared.blackbox.shelf import read, reports
from shared.errors import UserError

LATEST = "latest"
SHOWN_STEPS = 15
SHOWN_SECONDS = 10
SHOWN_REQUESTS = 20


def find(shelf: Path, wanted: str) -> Report:
    """Return the newest report of an engine, by its id or its name, or of any with `latest`. Raises `UserError`."""
    paths = reports(shelf)
    if not paths:
        raise UserError(
            f"there is no black box in {shelf}",
            hint="no engine has died there; --name or --folder looks elsewhere",
        )
    if wanted == LATEST:
        return read(paths[0])
    if (by_id := shelf / f"{wanted}.json") in paths:
        return read(by_id)
    kept = [read(path) for path in paths]
    named = next((said for said in kept if said.name == wanted), None)
    if named is not None:
        return named
    known = ", ".join(f"{said.name or '-'} ({said.engine})" for said in kept[:SHOWN_STEPS])
    raise UserError(f"no engine {wanted!r} left a black box", hint=f"there are {known}")


def text(said: Report) -> str:
    """Return a report for people."""
    log = [f"log      {said.log}"] if said.log else []
    head = [
        f"{said.name or said.engine}: {said.cause}",
        f"  {said.summary}",
        "",
        f"engine   {said.engine}, service {said.service}, {said.backend} {said.version}".rstrip(),
        f"process  {said.pid} on {said.host}",
        f"lived    {_moment(said.began_unix_s)} to {_moment(said.ended_unix_s)}, "
        f"last record {said.ended_unix_s - said.last_unix_s:.2f} s before its end",
        *log,
    ]
    parts = [head, _notes(said), _steps(said), _seconds(said), _requests(said)]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _moment(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + "Z"


def _notes(said: Report) -> list[str]:
    return [
        f"{_before(said, note.unix_s)}  {note.what}{': ' * bool(note.why)}{note.why}"
        for note in said.notes
    ]


def _before(said: Report, unix_s: float) -> str:
    return f"{unix_s - said.ended_unix_s:>10.3f}"


def _steps(said: Report) -> list[str]:
    if not said.steps:
        return []
    head = f"{'S':>10}{'STEP':>9}{'MS':>9}{'DECODES':>9}{'PROMPTS':>9}{'TOKENS':>8}{'AGAIN':>7}{'PREEMPTED':>11}{'FREE':>8}  MODE"
    return [
        f"the last of {len(said.steps)} steps; seconds before its end, when it began:",
        head,
        *(
            f"{_before(said, step.unix_s)}{step.number:>9}{step.us / 1000:>9.2f}{step.decodes:>9}{step.prompts:>9}"
            f"{step.prefill_tokens:>8}{step.recomputed_tokens:>7}{step.preemptions:>11}{step.free_blocks:>8}  {step.mode}".rstrip()
            for step in said.steps[-SHOWN_STEPS:]
        ),
    ]


def _seconds(said: Report) -> list[str]:
    if not said.seconds:
        return []
    return [
        "each second; memory in GiB:",
        f"{'S':>10}{'STATE':>10}{'STEP':>9}{'AGE S':>8}{'RUN':>6}{'WAIT':>6}{'FREE':>8}{'GROUP':>14}{'GPU':>8}  PROCESSES",
        *(
            f"{_before(said, second.unix_s)}{second.state:>10}{second.step:>9}{second.step_age_s:>8.2f}{second.running:>6}"
            f"{second.waiting:>6}{second.free_blocks:>8}{_group(second):>14}{_devices(second):>8}  {_processes(second)}".rstrip()
            for second in said.seconds[-SHOWN_SECONDS:]
        ),
    ]


def _group(second: Second) -> str:
    if not second.group_bytes:
        return ""
    limit = f" of {second.group_limit_bytes / GIB:.1f}" if second.group_limit_bytes else ""
    return f"{second.group_bytes / GIB:.2f}{limit}"


def _devices(second: Second) -> str:
    used = sum(device.used_bytes for device in second.devices)
    return f"{used / GIB:.1f}" if second.devices else ""


def _processes(second: Second) -> str:
    def told(process: ProcessMemory) -> str:
        return f"{process.name} {process.rss_bytes / GIB:.2f}"

    return ", ".join(told(process) for process in second.processes)


def _requests(said: Report) -> list[str]:
    table = said.requests
    if not table.requests:
        return ["no request was under way"]
    count = len(table.requests) + table.left_out
    shown = table.requests[:SHOWN_REQUESTS]
    more = [f"and {count - len(shown)} more"] if count > len(shown) else []
    return [
        f"{count} request{'s' * (count != 1)} under way {said.ended_unix_s - table.unix_s:.2f} s before its end:",
        f"{'REQUEST':<40}{'STAGE':<13}{'PROMPT':>8}{'TOKENS':>8}{'BLOCKS':>8}",
        *(
            f"{each.request:<40}{each.stage:<13}{each.prompt_tokens:>8}{each.tokens:>8}{each.kv_blocks:>8}"
            for each in shown
        ),
        *more,
    ]
