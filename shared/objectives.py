"""What a service promises: objectives as people write them (`P99 < 2s`, `P95 TTFT < 500ms`, `availability >= 99.9%`). Pure."""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec

from shared.errors import UserError
from shared.latency_bounds import EACH_S, FIRST_S, WHOLE_S

_LATENCY = re.compile(
    r"P(?P<percentile>\d+(?:\.\d+)?)(?:\s+(?P<what>[a-z]+))?\s*<=?\s*(?P<limit>\S.*)", re.I
)
_AVAILABILITY = re.compile(r"availability\s*>=?\s*(?P<percent>\d+(?:\.\d+)?)\s*%", re.I)
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|m)", re.I)
_UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0}
_HINT = "write it as `P99 < 2s`, `P95 TTFT < 500ms`, `P99 TPOT < 50ms`, or `availability >= 99.9%`"


class Measure(StrEnum):
    """What of a request an objective is about."""

    AVAILABILITY = "availability"
    """That there is an answer."""
    LATENCY = "latency"
    """First byte in to last byte out."""
    TTFT = "ttft"
    """First byte in to first token."""
    TPOT = "tpot"
    """Mean time of a token after the first."""


_BOUNDS = {Measure.LATENCY: WHOLE_S, Measure.TTFT: FIRST_S, Measure.TPOT: EACH_S}


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """One promise."""

    measure: Measure
    percent: float
    """Of the requests at least so many keep it."""
    limit_s: float = 0.0
    """Within this time; of availability none."""

    @property
    def budget(self) -> float:
        """Share of the requests that may break it."""
        return round(1.0 - self.percent / 100.0, 9)

    @property
    def name(self) -> str:
        """As a label's value, such as `ttft_p95` or `availability`."""
        if self.measure is Measure.AVAILABILITY:
            return self.measure.value
        return f"{self.measure.value}_p{self.percent:g}"

    @property
    def bound_s(self) -> float:
        """The histogram's bound that stands for the limit: the largest that is not above it, so that the rule is never too lenient.

        Raises `UserError` where there is none.
        """
        bounds = _BOUNDS[self.measure]
        fitting = [bound for bound in bounds if bound <= self.limit_s]
        if not fitting or self.limit_s > bounds[-1]:
            raise UserError(
                f"no objective of {self.measure} can be measured at {self.limit_s:g} s",
                hint=f"choose a limit from {bounds[0]:g} s to {bounds[-1]:g} s",
            )
        return fitting[-1]


def parse_objective(text: str) -> Objective:
    """Return what a text promises. Raises `UserError`."""
    words = text.strip()
    if match := _AVAILABILITY.fullmatch(words):
        return Objective(measure=Measure.AVAILABILITY, percent=_percent(match["percent"], text))
    match = _LATENCY.fullmatch(words)
    duration = _DURATION.fullmatch(match["limit"].strip()) if match else None
    if match is None or duration is None:
        raise UserError(f"{text!r} is no objective", hint=_HINT)
    try:
        measure = Measure((match["what"] or "latency").lower())
    except ValueError:
        raise UserError(f"{text!r}: {match['what']!r} is not measured", hint=_HINT) from None
    if measure is Measure.AVAILABILITY:
        raise UserError(f"{text!r}: availability has no percentile", hint=_HINT)
    objective = Objective(
        measure=measure,
        percent=_percent(match["percentile"], text),
        limit_s=float(duration["number"]) * _UNITS_S[duration["unit"].lower()],
    )
    _ = objective.bound_s
    return objective


def _percent(text: str, whole: str) -> float:
    percent = float(text)
    if not 0 < percent < 100:  # noqa: PLR2004 - a percentage
        raise UserError(f"{whole!r}: {text} is not between 0 and 100", hint=_HINT)
    return percent
