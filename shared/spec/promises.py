"""The tables of what a service promises and how a new version comes in: `slo` and `rollout`. Pure; see `shared.spec.tables`."""

from __future__ import annotations

import re

from shared.spec import model
from shared.spec.fields import DAY_S, Table, field, part
from shared.spec.kinds import Choice, Json, Several, Text, Texts
from shared.spec.units import Duration, Share, failures_of, latency_of

MAX_DIVISOR = 100.0
_STEP_DOWN = re.compile(r"batch_size\s{0,2}/\s{0,2}(\d{1,3}(?:\.\d{1,6})?)")
_WINDOW = Duration("5m", highest_s=30 * DAY_S)


class _Latency:
    hint = "write a quantile and a time, as P99 < 2s"

    def read(self, value: object) -> model.Threshold:
        """See `Kind`."""
        quantile, limit_s = latency_of(value)
        return model.Threshold(quantile=quantile, limit_s=limit_s)

    def write(self, value: model.Threshold) -> object:
        """See `Kind`."""
        time = Duration("2s", highest_s=3600.0).write(value.limit_s)
        return f"P{value.quantile * 100:.9g} < {time}"

    def schema(self) -> Json:
        """See `Kind`."""
        return {"type": "string", "pattern": r"^\s*[pP]\d{1,2}(\.\d+)?\s*(<=?|≤)"}


class _StepDown:
    hint = "write batch_size and what it is divided by, as batch_size/2"

    def read(self, value: object) -> float:
        """See `Kind`."""
        match = _STEP_DOWN.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None or not 1.0 < float(match[1]) <= MAX_DIVISOR:
            raise ValueError
        return float(match[1])

    def write(self, value: float) -> object:
        """See `Kind`."""
        return f"batch_size/{value:.9g}"

    def schema(self) -> Json:
        """See `Kind`."""
        return {"type": "string", "pattern": r"^\s*batch_size\s*/\s*\d"}


class _Failures:
    hint = "write how many in a row, as 3 consecutive failures"

    def read(self, value: object) -> int:
        """See `Kind`."""
        return failures_of(value)

    def write(self, value: int) -> object:
        """See `Kind`."""
        return f"{value} consecutive failures"

    def schema(self) -> Json:
        """See `Kind`."""
        return {"type": ["string", "integer"]}


RECOVERY = Table(
    cls=model.Recovery,
    fields=(
        field("stepDown", "step_down", _StepDown(), "how the batch limit is lowered"),
        field(
            "coolDown",
            "cool_down_s",
            Duration("3m", highest_s=DAY_S),
            "time before it is raised again",
        ),
    ),
)
LATENCY = Table(
    cls=model.LatencyObjective,
    shorthand="threshold",
    fields=(
        field("threshold", "threshold", _Latency(), "quantile and limit"),
        field("metric", "metric", Choice("end_to_end", "ttft", "tpot"), "which time"),
        field("measureWindow", "measure_window_s", _WINDOW, "over which time it is measured"),
        field(
            "exclusions",
            "exclusions",
            Several(Choice("first_token"), "write [first_token]"),
            "stretches that do not count",
        ),
        part("recovery", "recovery", RECOVERY, "what relieves the service"),
    ),
)
SHARE = Table(
    cls=model.ShareObjective,
    shorthand="target",
    fields=(
        field("target", "target", Share("99.9%", above=True), "share of requests in order"),
        field("measureWindow", "measure_window_s", _WINDOW, "over which time it is measured"),
    ),
)
DEGRADATION = Table(
    cls=model.Degradation,
    fields=(
        field("fallback", "fallback", Choice("previous_model"), "what takes over"),
        field("threshold", "consecutive_failures", _Failures(), "after which evaluations"),
    ),
)
ACCURACY = Table(
    cls=model.AccuracyObjective,
    fields=(
        field(
            "evalSet",
            "eval_set",
            Text("write a file of questions and answers", max_chars=1024),
            "golden set",
        ),
        field("passRate", "pass_rate", Share(">95%", above=True), "share that has to pass"),
        part("degradation", "degradation", DEGRADATION, "what is done when it does not"),
    ),
)
SLO = Table(
    cls=model.Slo,
    fields=(
        part("latency", "latency", LATENCY, "promised times", many=True),
        part("availability", "availability", SHARE, "requests that are answered"),
        part("correctness", "correctness", SHARE, "answers in order"),
        part("accuracy", "accuracy", ACCURACY, "golden set that keeps passing"),
    ),
)
ROLLOUT = Table(
    cls=model.Rollout,
    fields=(
        field(
            "steps",
            "steps",
            Several(Share("5%", above=True), "write a list of shares, as [1%, 10%, 50%, 100%]"),
            "shares of the traffic that the new version gets",
        ),
        field(
            "interval",
            "interval_s",
            Duration("15m", highest_s=30 * DAY_S),
            "time between two steps",
        ),
        field(
            "match",
            "match",
            Texts("write a table of headers, as {x-canary: true}", most=16),
            "headers whose requests always go to the new version",
        ),
        field(
            "analysis",
            "analysis",
            Several(
                Choice("error_rate", "ttft", "tpot", "end_to_end"),
                "write a list of error_rate, ttft, tpot, end_to_end",
            ),
            "what is compared; left out: all",
        ),
    ),
)
