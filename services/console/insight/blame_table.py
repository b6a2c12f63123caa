"""`headrace blame`: stages by quantiles as a table, with the words below. Pure.

The stages are means of some requests around each quantile: those that its column counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from services.console.insight.waterfall import Names
from shared.blame import Blame, Quantile, sentences
from shared.messages import STAGES
from shared.quantities import duration, percent, several

MAX_CHARS = 100


def table(blame: Blame, title: str, names: Names) -> str:
    """Return the whole answer for people."""
    others = blame.requests - blame.finished
    head = f"{title}: {several(blame.requests, 'request')}"
    if others:
        head += f", {others:,} of them not finished"
    if blame.is_sampled:
        head += "; figures from a sample"
    lines = [head, ""]
    if blame.wall:
        lines += [*_stages(blame), ""]
    return "\n".join(
        [*lines, *(line for said in sentences(blame, names) for line in wrap(said, MAX_CHARS))]
    )


def _stages(blame: Blame) -> list[str]:
    last = blame.wall[-1]
    heads = [f"{q.name:>10}{'':7}" for q in blame.wall]
    lines = [
        f"{'':<13}{''.join(heads)}{f'of {last.name} − p50':>16}",
        _row("wall", [(q.us, "") for q in blame.wall], ""),
    ]
    if blame.first_token:
        lines.append(_row("first token", [(q.us, "") for q in blame.first_token], ""))
    near = [(q.around.total_us, f"of {q.around.requests}") for q in blame.wall]
    lines.append(_row("mean around", near, ""))
    for i, stage in enumerate(STAGES):
        cells = [(q.parts[i].us, _of(q, i)) for q in blame.wall]
        if any(us for us, _ in cells):
            more = last.parts[i].share
            lines.append(_row(stage, cells, percent(more) if more else ""))
    shares = [(None, percent(q.around.non_compute_share)) for q in blame.wall]
    return [*lines, _row("no compute", shares, "")]


def _of(quantile: Quantile, place: int) -> str:
    total = quantile.around.total_us
    return percent(quantile.parts[place].us / total) if total else ""


def _row(name: str, cells: Sequence[tuple[float | None, str]], more: str) -> str:
    each = [f"{_time(us):>10}{share:>7}" for us, share in cells]
    return f"{name:<13}{''.join(each)}{more:>16}".rstrip()


def _time(us: float | None) -> str:
    if us is None:
        return ""
    return duration(us) if us else "-"
