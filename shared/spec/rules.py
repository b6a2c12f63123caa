"""The Prometheus rules of declared services: their own metrics, and alerts on how fast their error budgets burn. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from shared.objectives import Measure, Objective
from shared.prom_rules import ServiceRules, service_groups
from shared.spec.model import LatencyObjective, LLMService

HUNDRED = 100.0
_MEASURES = {"end_to_end": Measure.LATENCY, "ttft": Measure.TTFT, "tpot": Measure.TPOT}


def prometheus_rules(specs: Sequence[LLMService]) -> str:
    """Return a rules file. Raises `UserError` for names that are taken and limits that no histogram can tell."""
    lines = []
    for spec in specs:
        lines += [
            f"# {spec.name}: {_written(one)} leaves out {', '.join(one.exclusions)}, which no histogram can: no rule"
            for one in spec.slo.latency
            if one.exclusions
        ]
    return "".join(f"{line}\n" for line in lines) + service_groups([_rules(spec) for spec in specs])


def _rules(spec: LLMService) -> ServiceRules:
    objectives = [_objective(one) for one in spec.slo.latency if not one.exclusions]
    if spec.slo.availability is not None:
        percent = round(spec.slo.availability.target * HUNDRED, 9)
        objectives.append(Objective(measure=Measure.AVAILABILITY, percent=percent))
    return ServiceRules(
        service=spec.name,
        custom_metrics=spec.observability.custom_metrics,
        objectives=tuple(objectives),
    )


def _objective(one: LatencyObjective) -> Objective:
    return Objective(
        measure=_MEASURES[one.metric],
        percent=round(one.threshold.quantile * HUNDRED, 9),
        limit_s=one.threshold.limit_s,
    )


def _written(one: LatencyObjective) -> str:
    return f"P{one.threshold.quantile * HUNDRED:.9g} {one.metric} < {one.threshold.limit_s:g}s"
