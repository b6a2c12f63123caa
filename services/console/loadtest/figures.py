"""From request samples to the figures of a load test. Pure.

TTFT: from sending (or the scheduled arrival) to the first token. TPOT: (last token - first token) / (output tokens - 1).
Inter-token: between chunks that carry text. End to end: to the end of the answer. Percentiles are nearest-rank.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import msgspec


class Sample(msgspec.Struct, kw_only=True):
    """One request as seen from outside; times in seconds on one clock."""

    due_s: float
    """When it was due: waiting for a free client counts as latency (no coordinated omission)."""
    token_times_s: list[float] = []
    end_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None


class Spread(msgspec.Struct, frozen=True):
    """Distribution of one latency, in milliseconds."""

    p50: float
    p90: float
    p99: float
    mean: float
    max: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a load test."""

    requests: int
    failed: int
    errors: dict[str, int]
    elapsed_s: float
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    mean_prompt_tokens: float
    mean_output_tokens: float
    token_index: int
    ttft_ms: Spread | None
    tpot_ms: Spread | None
    inter_token_ms: Spread | None
    nth_token_ms: Spread | None
    end_to_end_ms: Spread | None


def nearest_rank(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value with at least `share` of all values at or below it; `ordered` is sorted and not empty."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(seconds: Sequence[float]) -> Spread | None:
    """Return the distribution in milliseconds, or `None` without values."""
    if not seconds:
        return None
    ordered = sorted(value * 1000 for value in seconds)
    return Spread(
        p50=nearest_rank(ordered, 0.50),
        p90=nearest_rank(ordered, 0.90),
        p99=nearest_rank(ordered, 0.99),
        mean=sum(ordered) / len(ordered),
        max=ordered[-1],
    )


def tpot_s(sample: Sample) -> float | None:
    """Return the time per output token after the first, or `None` where there is only one."""
    if sample.output_tokens <= 1 or len(sample.token_times_s) <= 1:
        return None
    return (sample.token_times_s[-1] - sample.token_times_s[0]) / (sample.output_tokens - 1)


def _gaps(sample: Sample) -> list[float]:
    return [later - earlier for earlier, later in pairwise(sample.token_times_s)]


def summarise(samples: Sequence[Sample], *, elapsed_s: float, token_index: int) -> Figures:
    """Return the figures of all samples; failed requests count as failed and nowhere else."""
    good = [s for s in samples if s.error is None]
    count = max(1, len(good))
    out = sum(s.output_tokens for s in good)
    prompt = sum(s.prompt_tokens for s in good)
    with_text = [s for s in good if s.token_times_s]
    nth = [
        s.token_times_s[token_index - 1] - s.due_s
        for s in good
        if len(s.token_times_s) >= token_index
    ]
    return Figures(
        requests=len(samples),
        failed=len(samples) - len(good),
        errors=dict(Counter(s.error for s in samples if s.error is not None)),
        elapsed_s=elapsed_s,
        requests_per_s=len(good) / elapsed_s,
        output_tokens_per_s=out / elapsed_s,
        total_tokens_per_s=(out + prompt) / elapsed_s,
        mean_prompt_tokens=prompt / count,
        mean_output_tokens=out / count,
        token_index=token_index,
        ttft_ms=spread([s.token_times_s[0] - s.due_s for s in with_text]),
        tpot_ms=spread([t for s in good if (t := tpot_s(s)) is not None]),
        inter_token_ms=spread([gap for s in good for gap in _gaps(s)]),
        nth_token_ms=spread(nth),
        end_to_end_ms=spread([s.end_s - s.due_s for s in good]),
    )


def table(figures: Figures) -> str:
    """Return the figures as a table for people."""
    rows = [
        ("TTFT", figures.ttft_ms),
        ("TPOT", figures.tpot_ms),
        ("inter-token", figures.inter_token_ms),
        (f"token {figures.token_index}", figures.nth_token_ms),
        ("end to end", figures.end_to_end_ms),
    ]
    lines = [f"{'ms':<14}{'p50':>10}{'p90':>10}{'p99':>10}{'mean':>10}{'max':>10}"]
    for name, s in rows:
        cells = (s.p50, s.p90, s.p99, s.mean, s.max) if s is not None else ()
        lines.append(f"{name:<14}" + ("".join(f"{cell:>10.1f}" for cell in cells) or f"{'-':>10}"))
    lines += [
        "",
        f"requests {figures.requests}, failed {figures.failed}, {figures.requests_per_s:.2f}/s over {figures.elapsed_s:.1f} s",
        f"tokens/s: {figures.output_tokens_per_s:.1f} generated, {figures.total_tokens_per_s:.1f} with the prompts",
        f"tokens per request: {figures.mean_prompt_tokens:.1f} prompt, {figures.mean_output_tokens:.1f} generated",
    ]
    lines += [f"  {count} × {error}" for error, count in sorted(figures.errors.items())]
    return "\n".join(lines)
