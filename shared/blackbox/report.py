"""What a black box says, in words and figures for people. Pure."""

from __future__ import annotations

import msgspec

from shared.blackbox.layout import Box, Note, Second, Step, Table
from shared.ids import EngineId, ServiceName

MINUTE_S = 60.0
FULLEST_S = 5.0
HUNG_S = 5.0
"""A step that old, while choices ran, is told with the cause."""
NEAR_LIMIT_RATIO = 0.95
"""So full a memory group makes lack of memory the likely cause of a kill that nobody explains."""
GIB = 1 << 30


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """What whoever keeps the box knows about the engine's end."""

    how: str = ""
    """Such as `signal SIGKILL` or `exit code 1`; empty: nobody saw it."""
    unix_s: float = 0.0
    """When it was seen; 0: not known."""
    oom_kills: int = -1
    """As `Second.oom_kills`, counted after the end; -1: not known."""
    log: str = ""
    """File with the engine's log, if the keeper knows it."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A box as it is kept and shown."""

    engine: EngineId
    service: ServiceName
    name: str
    backend: str
    version: str
    host: str
    pid: int
    began_unix_s: float
    last_unix_s: float
    """Time of its last record."""
    ended_unix_s: float
    """When its end was seen; the same where nobody saw it."""
    cause: str
    summary: str
    """How things stood, in words."""
    log: str
    last_step: int
    step_age_s: float
    """From the end of its last step to `ended_unix_s`."""
    free_blocks: int
    total_blocks: int
    rss_bytes: int
    """The most of its last five seconds."""
    rss_change_bytes: int
    """To there in a minute, or as long as it lived."""
    requests: Table
    notes: list[Note]
    seconds: list[Second]
    steps: list[Step]


def report(box: Box, ending: Ending) -> Report | None:
    """Return what a box says; none where it does not say whose it is."""
    identity = box.identity
    if identity is None:
        return None
    last = box.seconds[-1] if box.seconds else Second(unix_s=identity.began_unix_s)
    fullest = _fullest(box, last)
    step_unix_s = _step_unix_s(box, last)
    last_unix_s = max(last.unix_s, step_unix_s, *(note.unix_s for note in box.notes), 0.0)
    ended_unix_s = max(ending.unix_s, last_unix_s)
    said = Report(
        engine=identity.engine,
        service=identity.service,
        name=identity.name,
        backend=identity.backend,
        version=identity.version,
        host=identity.host,
        pid=identity.pid,
        began_unix_s=identity.began_unix_s,
        last_unix_s=last_unix_s,
        ended_unix_s=ended_unix_s,
        cause=_cause(box, last, ending),
        summary="",
        log=ending.log,
        last_step=box.steps[-1].number if box.steps else last.step,
        step_age_s=round(ended_unix_s - step_unix_s, 3) if step_unix_s else 0.0,
        free_blocks=_free_blocks(box, last),
        total_blocks=last.total_blocks,
        rss_bytes=fullest.rss_bytes,
        rss_change_bytes=fullest.rss_bytes - _minute_before(box, fullest).rss_bytes,
        requests=box.table or Table(unix_s=last.unix_s),
        notes=box.notes,
        seconds=box.seconds,
        steps=box.steps,
    )
    return msgspec.structs.replace(said, summary=_summary(said))


def _step_unix_s(box: Box, last: Second) -> float:
    """Return when the last step ended, as far as it is known; 0: there was none."""
    if box.steps:
        return box.steps[-1].unix_s + box.steps[-1].us / 1e6
    return last.unix_s - last.step_age_s if last.step else 0.0


def _free_blocks(box: Box, last: Second) -> int:
    newer = box.steps and box.steps[-1].unix_s > last.unix_s
    return box.steps[-1].free_blocks if newer else last.free_blocks


def _fullest(box: Box, last: Second) -> Second:
    """Return the last seconds' one with the most memory: the core may have died before the front."""
    late = [second for second in box.seconds if last.unix_s - second.unix_s <= FULLEST_S]
    return max(late, key=lambda second: second.rss_bytes, default=last)


def _minute_before(box: Box, then: Second) -> Second:
    return next((s for s in box.seconds if then.unix_s - s.unix_s <= MINUTE_S), then)


def _cause(box: Box, last: Second, ending: Ending) -> str:
    said = [ending.how or "nobody saw how it ended"]
    said += [note.why or note.what for note in box.notes if note.what == "failed"][-1:]
    share = last.group_bytes / last.group_limit_bytes if last.group_limit_bytes else 0.0
    if ending.oom_kills > last.oom_kills >= 0:
        said.append("the kernel killed for lack of memory (OOM)")
    elif share >= NEAR_LIMIT_RATIO:
        said.append(f"its memory group was at {share:.0%} of its limit")
    if last.step_age_s >= HUNG_S and last.running:
        said.append(f"it hung: no step for {last.step_age_s:.1f} s at its last record")
    return "; ".join(said)


def _summary(said: Report) -> str:
    under_way = len(said.requests.requests) + said.requests.left_out
    words = [
        f"last step {said.last_step}, {said.step_age_s:.2f} s before the end"
        if said.last_step
        else "no step",
        f"{under_way} request{'s' * (under_way != 1)} under way at its last look",
    ]
    if said.total_blocks:
        words.append(f"{said.free_blocks} of {said.total_blocks} blocks free")
    if said.rss_bytes:
        change = f"{said.rss_change_bytes / GIB:+.2f} GiB in its last minute"
        words.append(f"{said.rss_bytes / GIB:.2f} GiB resident, {change}")
    return "; ".join(words)
