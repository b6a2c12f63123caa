"""Names, labels and texts of the metrics that are made of ledgers and steps. Called at a scrape only; see `request_metrics`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from services.tracer.blame_bands import BANDS, BlameBands
from services.tracer.request_counts import RequestCounts
from shared.evidence import Evidence
from shared.latency_bounds import spelled
from shared.messages import STAGES, Outcome, Priority, StepSummary
from shared.spread import Spread

Key = tuple[str, str, str, Priority]
"""Service, version, engine, class."""
Labels = tuple[str, ...]

US = 1e6
_GOOD = (Outcome.FINISHED, 2, Evidence.GOOD)
_BAD = (Outcome.FAILED, 5, Evidence.BAD)
PROVIDER = "headrace"
OPERATIONS = {"chat": "chat", "completion": "text_completion"}
"""OTel's `gen_ai.operation.name` by the kind of a request; one that could not be read has none."""
GEN_AI = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
"""Attributes that OTel's conventions ask for, as Prometheus spells them."""


class StepTotals:
    """An engine's steps, added up; what the engine's own page tells as well is left to it."""

    __slots__ = ("busy_us", "dropped", "largest_batch", "last_us", "steps", "wait_us")

    def __init__(self) -> None:
        self.steps = self.busy_us = self.wait_us = 0
        self.dropped = 0
        self.largest_batch = 0
        self.last_us = 0

    def add(self, steps: StepSummary, *, dropped: int, unix_us: int) -> None:
        """Add the steps of one batch."""
        self.steps += steps.steps
        self.busy_us += steps.busy_us
        self.wait_us += steps.wait_us
        self.dropped += dropped
        self.largest_batch = steps.largest_batch
        self.last_us = unix_us


def request_families(groups: Mapping[Key, RequestCounts]) -> Iterator[Metric]:
    """Yield what is made of ledgers."""
    yield from _stage_families(groups)
    yield from _gen_ai_families(groups)
    yield from _token_families(groups)
    yield _histogram(
        "headrace_longest_token_gap_seconds",
        "The longest pause between two deltas of an answer.",
        ("service", "version", "class"),
        _summed(((s, v, c), counts.gap) for (s, v, _, c), counts in groups.items()),
    )
    ended = CounterMetricFamily(
        "headrace_requests",
        "Requests that ended; evidence says what an SLO makes of them.",
        labels=("service", "version", "engine", "class", "outcome", "status", "evidence"),
    )
    for key, counts in groups.items():
        finished = sum(spread.count for spread in counts.finished.values())
        # Both are there from a service's first request on: Prometheus cannot tell how much a series grew that begins above 0.
        rows = {_GOOD: finished, _BAD: 0} | counts.ended
        for (outcome, hundreds, evidence), count in rows.items():
            ended.add_metric((*key, outcome, f"{hundreds}xx", evidence), count)
    yield ended
    lost = CounterMetricFamily(
        "headrace_lost_attempts",
        "Engines that lost a request, by how it went on: resume, replay, or anew.",
        labels=("service", "version", "class", "way"),
    )
    for labels, total in _added(
        ((s, v, c, way), count)
        for (s, v, _, c), counts in groups.items()
        for way, count in counts.lost.items()
    ).items():
        lost.add_metric(labels, total)
    yield lost


def blame_families(bands: Mapping[tuple[str, Priority], BlameBands]) -> Iterator[Metric]:
    """Yield what the time of typical, slow and slowest requests went to."""
    labels = ("service", "class", "band")
    seconds = CounterMetricFamily(
        "headrace_blame_stage_seconds",
        "Time by stage of the requests of a band; divided by headrace_blame_requests_total: what the stage adds to their latency.",
        labels=(*labels, "stage"),
    )
    requests = CounterMetricFamily("headrace_blame_requests", "Requests of a band.", labels=labels)
    edges = GaugeMetricFamily(
        "headrace_blame_from_seconds",
        "Duration of a request from which on it is in the band.",
        labels=labels,
    )
    for (service, priority), one in bands.items():
        for number, band in enumerate(BANDS):
            own = (service, priority, band)
            requests.add_metric(own, one.requests[number])
            for stage, us in zip(STAGES, one.stage_us[number], strict=True):
                seconds.add_metric((*own, stage), us / US)
            if one.edges_us:
                edges.add_metric(own, one.edges_us[(0, 2, 3)[number]] / US)
    yield from (seconds, requests, edges)


def step_families(engines: Mapping[tuple[str, str], StepTotals]) -> Iterator[Metric]:
    """Yield what engines say of their steps."""
    labels = ("service", "engine")
    for name, text, read in _STEP_TOTALS:
        family = CounterMetricFamily(f"headrace_engine_{name}", text, labels=labels)
        for own, totals in engines.items():
            family.add_metric(own, read(totals))
        yield family
    batch = GaugeMetricFamily(
        "headrace_engine_batch_size", "Most choices in one of the last steps.", labels=labels
    )
    for own, totals in engines.items():
        batch.add_metric(own, totals.largest_batch)
    yield batch


_STEP_TOTALS: tuple[tuple[str, str, Callable[[StepTotals], float]], ...] = (
    ("observed_steps", "Steps told of in stage batches.", lambda t: t.steps),
    ("busy_seconds", "Time of these steps.", lambda t: t.busy_us / US),
    (
        "wait_seconds",
        "Part of it beyond decode-only steps, while somebody was decoding.",
        lambda t: t.wait_us / US,
    ),
    ("dropped_moves", "Moves between stages that found no room in a batch.", lambda t: t.dropped),
)
"""Name, text, and how it is read."""

_TIERS: tuple[tuple[str, Callable[[RequestCounts], float]], ...] = (
    ("l1", lambda c: c.cached_tokens - c.host_tokens - c.disk_tokens),
    ("l2", lambda c: c.host_tokens),
    ("l3", lambda c: c.disk_tokens),
)
"""Where KV blocks came from: the engine's own pool, host memory, disk."""

_TOKENS: tuple[tuple[str, str, Callable[[RequestCounts], float]], ...] = (
    ("prefill_tokens", "Prompt tokens computed.", lambda c: c.prefill_tokens),
    (
        "recomputed_tokens",
        "Tokens computed again after preemptions.",
        lambda c: c.recomputed_tokens,
    ),
    ("drafted_tokens", "Speculative tokens proposed.", lambda c: c.drafted_tokens),
    ("accepted_tokens", "Speculative tokens that held.", lambda c: c.accepted_tokens),
    ("preemptions", "Preemptions of choices.", lambda c: c.preemptions),
    (
        "blocked_seconds",
        "Time in which requests were held up by others' prefill.",
        lambda c: c.blocked_us / US,
    ),
)


def _stage_families(groups: Mapping[Key, RequestCounts]) -> Iterator[Metric]:
    yield _histogram(
        "headrace_stage_duration_seconds",
        "Time of a request in a stage; the twelve sum to its whole time.",
        ("service", "version", "class", "stage"),
        _summed(
            ((s, v, c, stage), spread)
            for (s, v, _, c), counts in groups.items()
            for stage, spread in zip(STAGES, counts.stages, strict=True)
        ),
    )
    seconds = CounterMetricFamily(
        "headrace_stage_seconds",
        "Time of all requests by stage and engine.",
        labels=("service", "version", "engine", "stage"),
    )
    for labels, us in _added(
        ((s, v, e, stage), spread.sum_us)
        for (s, v, e, _), counts in groups.items()
        for stage, spread in zip(STAGES, counts.stages, strict=True)
    ).items():
        seconds.add_metric(labels, us / US)
    yield seconds


def _gen_ai_families(groups: Mapping[Key, RequestCounts]) -> Iterator[Metric]:
    labels = ("service", "version", "class", *GEN_AI)
    yield _histogram(
        "gen_ai_server_request_duration_seconds",
        "From the first byte read to the last byte handed over; error_type is empty for finished requests.",
        (*labels, "error_type"),
        _summed(
            ((s, v, c, *_gen_ai(kind, s), error_type), spread)
            for (s, v, _, c), counts in groups.items()
            for kind, error_type, spread in _whole(counts)
        ),
    )
    with_engine = ("service", "version", "engine", "class", *GEN_AI)
    yield _histogram(
        "gen_ai_server_time_to_first_token_seconds",
        "From the first byte read to the first token, of finished requests.",
        with_engine,
        {
            (*key, *_gen_ai(kind, key[0])): answers.first
            for key, counts in groups.items()
            for kind, answers in counts.answers.items()
        },
    )
    yield _histogram(
        "gen_ai_server_time_per_output_token_seconds",
        "Mean time of a token after the first, of finished requests.",
        with_engine,
        {
            (*key, *_gen_ai(kind, key[0])): answers.each
            for key, counts in groups.items()
            for kind, answers in counts.answers.items()
        },
    )


def _token_families(groups: Mapping[Key, RequestCounts]) -> Iterator[Metric]:
    labels = ("service", "version", "class")
    tokens = CounterMetricFamily(
        "headrace_request_tokens",
        "Tokens of requests: in prompts, out generated.",
        labels=(*labels, "direction"),
    )
    cached = CounterMetricFamily(
        "headrace_cached_tokens",
        "Prompt tokens whose KV blocks were there already, by tier.",
        labels=(*labels, "tier"),
    )
    for own, count in _by_class(groups, lambda c: c.in_tokens):
        tokens.add_metric((*own, "in"), count)
    for own, count in _by_class(groups, lambda c: c.out_tokens):
        tokens.add_metric((*own, "out"), count)
    for tier, read in _TIERS:
        for own, count in _by_class(groups, read):
            cached.add_metric((*own, tier), count)
    yield from (tokens, cached)
    for name, text, read in _TOKENS:
        family = CounterMetricFamily(f"headrace_{name}", text, labels=labels)
        for own, value in _by_class(groups, read):
            family.add_metric(own, value)
        yield family


def _by_class(
    groups: Mapping[Key, RequestCounts], read: Callable[[RequestCounts], float]
) -> Iterable[tuple[Labels, float]]:
    return _added(((s, v, c), read(counts)) for (s, v, _, c), counts in groups.items()).items()


def _gen_ai(kind: str, service: str) -> Labels:
    return OPERATIONS.get(kind, ""), PROVIDER, service


def _whole(counts: RequestCounts) -> Iterator[tuple[str, str, Spread]]:
    """Yield kind, error type (empty: finished) and durations."""
    yield from ((kind, "", spread) for kind, spread in counts.finished.items())
    yield from ((kind, outcome, spread) for (kind, outcome), spread in counts.unfinished.items())


def _added(parts: Iterable[tuple[Labels, float]]) -> dict[Labels, float]:
    totals: dict[Labels, float] = {}
    for labels, value in parts:
        totals[labels] = totals.get(labels, 0.0) + value
    return totals


def _summed(parts: Iterable[tuple[Labels, Spread]]) -> dict[Labels, Spread]:
    totals: dict[Labels, Spread] = {}
    for labels, spread in parts:
        total = totals.get(labels)
        if total is None:
            total = totals[labels] = Spread(spread.bounds)
        total.add(spread)
    return totals


def _histogram(name: str, text: str, labels: Labels, spreads: Mapping[Labels, Spread]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=labels)
    for own, spread in spreads.items():
        if spread.count:
            buckets = list(zip(map(spelled, spread.bounds), spread.at_most, strict=True))
            family.add_metric(own, [*buckets, ("+Inf", spread.count)], spread.sum_us / US)
    return family
