"""The picture of one request in a terminal: its stages one below the other, and what is known of its run. Pure.

A ledger holds sums: stages that take turns, as `decode` and `decode_wait` do, are drawn one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping

from services.console.insight.found import Found
from shared.messages import STAGES, Ledger
from shared.quantities import count, duration, percent, several

BAR_CHARS = 40
EIGHTHS = " ▏▎▍▌▋▊▉█"
HEAD = f"{'STAGE':<13}{'TIME':>9}{'SHARE':>8}{'SUM':>10}"

Names = Mapping[str, str]
"""What people call engines, by id."""


def engine_name(engine: str, names: Names) -> str:
    """Return `engine-0 (e0123…)`, or the id alone."""
    return f"{names[engine]} ({engine})" if names.get(engine) else engine


def bar(begin_us: int, us: int, whole_us: int) -> str:
    """Return the bar of a part that begins after `begin_us` of the whole; what took time shows at least a sliver."""
    if us <= 0 or whole_us <= 0:
        return ""
    scale = BAR_CHARS * 8 / whole_us
    begin = min(round(begin_us * scale), BAR_CHARS * 8 - 1)
    end = max(begin + 1, min(round((begin_us + us) * scale), BAR_CHARS * 8))
    cell, into = divmod(begin, 8)
    if end <= 8 * (cell + 1):
        return " " * cell + EIGHTHS[max(1, end - begin)]
    # Blocks fill from the left only: a bar that begins within a cell takes the cell if it covers half of it.
    first = cell if into <= 4 else cell + 1  # noqa: PLR2004 - half of eight
    full, rest = divmod(end - 8 * first, 8)
    return (" " * first + "█" * full + EIGHTHS[rest].strip()) if full or rest else ""


def waterfall(ledger: Ledger) -> list[str]:
    """Return the twelve stages: time, share, sum so far, bar."""
    lines, begin = [HEAD], 0
    for stage, us in zip(STAGES, ledger.us, strict=True):
        share = us / ledger.wall_us if ledger.wall_us else 0.0
        figures = f"{duration(us) if us else '-':>9}{percent(share) if us else '':>8}{duration(begin + us):>10}"
        lines.append(f"{stage:<13}{figures}  {bar(begin, us, ledger.wall_us)}".rstrip())
        begin += us
    return lines


def heading(found: Found, names: Names) -> list[str]:
    """Return who the request was and how it ended."""
    one = found.ledger
    how = f"{one.outcome}, {'HTTP' if one.door == 'http' else 'NATS'} {one.status}"
    kind = [
        one.kind or "request",
        "streamed" if one.is_streamed else "in one piece",
        f"class {one.priority}",
    ]
    times = [f"wall {duration(one.wall_us)}"]
    if one.ttft_us:
        times.append(f"first token after {duration(one.ttft_us)}")
    if found.token_us is not None:
        times.append(f"then {duration(found.token_us)} a token")
    lines = [
        f"{one.request}  {how}{f' ({one.code})' if one.code else ''}",
        f"{found.began:%Y-%m-%d %H:%M:%S}.{one.began_unix_us // 1000 % 1000:03} UTC  {', '.join(times)}",
        f"service {found.service}, {', '.join(kind)}{f', tenant {one.tenant}' if one.tenant else ''}",
    ]
    return [*lines, *_places(found, names)]


def _places(found: Found, names: Names) -> list[str]:
    one = found.ledger
    where = [f"gateway {found.gateway}"]
    if one.engine:
        where.append(f"engine {engine_name(one.engine, names)}")
    where += [
        f"{what} {value}" for what, value in (("version", one.version), ("zone", one.zone)) if value
    ]
    ids = [f"trace {one.trace_id.hex()}"] if one.trace_id else []
    ids += [f"the caller's id {one.label}"] if one.label else []
    return [", ".join(where), *([", ".join(ids)] if ids else [])]


def _cached(one: Ledger) -> str:
    """Return how many tokens were there already, and which of them not in the engine's own pool."""
    lower = (("host memory", one.host_tokens), ("disk", one.disk_tokens))
    where = [f"{count(tokens)} from {tier}" for tier, tokens in lower if tokens]
    return f"{count(one.cached_tokens)} cached{': ' * bool(where)}{' and '.join(where)}"


def counts(found: Found, names: Names) -> list[str]:
    """Return what was computed, in which company, and what went wrong on the way."""
    one = found.ledger
    prompt = (
        f"prompt {count(one.prompt_tokens)} ({_cached(one)}, {count(one.prefill_tokens)} computed)"
    )
    tokens = f"{prompt}, answer {count(one.completion_tokens)}"
    lines = [f"tokens    {tokens}"] if one.prompt_tokens else []
    if one.expected_cached_tokens:
        why = "chosen for that" if one.route == "warm" else "not chosen for that"
        lines.append(
            f"warmth    {several(one.expected_cached_tokens, 'token')} expected there, {why}"
        )
    if one.drafted_tokens:
        share = percent(one.accepted_tokens / one.drafted_tokens)
        lines.append(
            f"drafts    {several(one.drafted_tokens, 'token')} proposed, {count(one.accepted_tokens)} held ({share})"
        )
    if one.last_step and not one.is_estimated:
        run = f"steps {one.first_step} to {one.last_step}, {count(one.batch_size)} in a batch, at most {several(one.kv_blocks, 'KV block')}"
        lines.append(f"run       {run}{f', {one.mode}' if one.mode else ''}")
    if one.blocks_us:
        lines.append(f"queued    {duration(one.blocks_us)} for KV blocks")
    if one.preemptions:
        again = several(one.recomputed_tokens, "token")
        lines.append(f"preempted {several(one.preemptions, 'time')}, {again} computed again")
    if len(one.choices) > 1:
        each = [
            f"{c.index}: {several(c.tokens, 'token')}, {c.finish or 'cut off'}" for c in one.choices
        ]
        lines.append(f"choices   {'; '.join(each)}")
    return lines + [
        f"attempt   {engine_name(a.engine, names)} {a.why} after {duration(a.us)}"
        for a in one.attempts
    ]
