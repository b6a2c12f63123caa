"""Which engine step made a token, when, and in which company: from what the engine keeps of its steps. Pure."""

from __future__ import annotations

import struct
from bisect import bisect_right
from datetime import UTC, datetime
from math import inf

import msgspec

from shared.messages import StepDetail, StepSpan, TokenRun
from shared.quantities import count, duration, several


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """How one token came to be."""

    choice: int
    token: int
    """From 1."""
    step: int
    after_us: float
    """When the step ended, since the first step of the request began."""
    within_us: float
    """It may have been so much earlier or later; 0: exact."""
    step_us: float
    """How long the step took; of a summarised one the mean of its span."""
    batch: float
    """Choices in the step; of a summarised one the mean of its span."""
    with_tokens: int
    """Tokens of this choice made in the same step."""
    others_prefill_tokens: int
    """Prompt tokens computed in its span; 0 where it is told one by one."""
    at: str
    """Wall time, RFC 3339 in UTC; empty where the engine gives none."""

    @property
    def is_exact(self) -> bool:
        """Whether time and batch are those of this very step."""
        return self.within_us == 0


def is_sound(detail: StepDetail) -> bool:
    """Return whether what an engine tells of its steps can be read: it is not asked again, whatever it says."""
    pairs = (detail.head_ms, detail.head_batch), (detail.tail_ms, detail.tail_batch)
    if any(len(ms) % 2 or len(ms) != len(batch) for ms, batch in pairs):
        return False
    told = (len(detail.head_ms) + len(detail.tail_ms)) // 2
    steps = detail.last_step + 1 - detail.first_step
    times = (*_halves(detail.head_ms), *_halves(detail.tail_ms))
    return (bool(detail.middle) or told >= steps) and all(0 <= us < inf for us in times)


def made(detail: StepDetail, token: int) -> list[Made]:
    """Return how the token of this number, counted from 1, came to be: one for each choice that has it."""
    found = []
    for choice, runs in enumerate(detail.runs):
        placed = _step_of(runs, token - 1)
        if placed is not None and detail.first_step <= placed[0] <= detail.last_step:
            found.append(_made(detail, choice, token, placed))
    return found


def _step_of(runs: list[TokenRun], place: int) -> tuple[int, int] | None:
    """Return the step of a token, counted from 0, and how many that step made."""
    index = bisect_right(runs, place, key=lambda run: run.token) - 1
    if index < 0:
        return None
    run = runs[index]
    return run.step + (place - run.token) // max(1, run.per_step), run.per_step


def _made(detail: StepDetail, choice: int, token: int, placed: tuple[int, int]) -> Made:
    step, per_step = placed
    after, within, step_us, batch, others = _moment(detail, step)
    return Made(
        choice=choice,
        token=token,
        step=step,
        after_us=after,
        within_us=within,
        step_us=step_us,
        batch=batch,
        with_tokens=per_step,
        others_prefill_tokens=others,
        at=_wall(detail, after),
    )


def _moment(detail: StepDetail, step: int) -> tuple[float, float, float, float, int]:
    """Return the end of a step, how exact that is, its length, its batch, and the prompt tokens of its span; times in microseconds."""
    head, tail = _halves(detail.head_ms), _halves(detail.tail_ms)
    place = step - detail.first_step
    if place < len(head):
        return sum(head[: place + 1]), 0.0, head[place], _batches(detail.head_batch)[place], 0
    first_of_tail = detail.last_step + 1 - len(tail)
    if step >= first_of_tail:
        begin = detail.middle[-1].begin_us + detail.middle[-1].us if detail.middle else sum(head)
        place = step - first_of_tail
        end = begin + sum(tail[: place + 1])
        return end, 0.0, tail[place], _batches(detail.tail_batch)[place], 0
    return _within(_span_of(detail.middle, step), step)


def _span_of(spans: list[StepSpan], step: int) -> StepSpan:
    return spans[max(0, bisect_right(spans, step, key=lambda span: span.first_step) - 1)]


def _within(span: StepSpan, step: int) -> tuple[float, float, float, float, int]:
    mean = span.us / max(1, span.steps)
    into = mean * (step - span.first_step + 1)
    within = max(into, span.us - into) if span.steps > 1 else 0.0
    return span.begin_us + into, within, mean, span.batch_size, span.prefill_tokens


def _halves(packed: bytes) -> list[float]:
    """Return microseconds from half floats of milliseconds."""
    return [1000.0 * ms for ms in struct.unpack(f"<{len(packed) // 2}e", packed)]


def _batches(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // 2}H", packed)


def _wall(detail: StepDetail, after_us: float) -> str:
    if not detail.unix_s:
        return ""
    moment = datetime.fromtimestamp(detail.unix_s + after_us / 1e6, tz=UTC)
    return moment.isoformat(timespec="milliseconds")


def sentence(one: Made, *, has_choices: bool) -> str:
    """Return how a token came to be, for people."""
    of = f" of choice {one.choice}" if has_choices else ""
    when = f"{duration(one.after_us)} after the first step began"
    if one.at:
        when += f" ({one.at[11:23]} UTC)"
    if one.is_exact:
        step = f"which took {duration(one.step_us)} with a batch of {count(one.batch)}"
    else:
        when += f", ± {duration(one.within_us)}"
        step = f"one of those that took {duration(one.step_us)} with a batch of {count(one.batch)} on average"
        if one.others_prefill_tokens:
            step += (
                f" and computed {several(one.others_prefill_tokens, 'prompt token')} between them"
            )
    drafts = (
        f", together with {several(one.with_tokens - 1, 'other')}" if one.with_tokens > 1 else ""
    )
    return f"Token {one.token:,}{of} was made in step {one.step}, {when}{drafts}: {step}."
