"""Prometheus rules of a service: its own metrics, and alerts on how fast its error budgets burn. Pure: a spec in, a rules file out.

Burn rates follow the SRE workbook (chapter 5, "Alerting on SLOs", 6: multiwindow, multi-burn-rate alerts), for budgets of 30 days:
a long window shows that much of the budget goes, a short one that it still does.

| alert | long window | short window | burn rate | of the budget by then |
|---|---|---|---|---|
| page | 1 h | 5 min | 14.4 | 2% |
| page | 6 h | 30 min | 6 | 5% |
| ticket | 1 d | 2 h | 3 | 10% |
| ticket | 3 d | 6 h | 1 | 10% |

A row whose burn rate times the budget is 1 or more can never fire (14.4 for `P90`) and is left out. Fewer than `LEAST` requests in the
long window say nothing and do not alert. A request that failed has kept no latency objective either; what callers choose (leaving, their
own deadlines, requests at fault) counts in none (`shared.evidence`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

import msgspec

from shared.errors import UserError
from shared.ids import ServiceName
from shared.latency_bounds import spelled
from shared.objectives import Measure, Objective
from shared.spec.model import CustomMetric

LEAST = 20
"""Requests."""
RECORD = "headrace_slo:bad_ratio:rate"
"""Begins the names of recorded ratios; the window follows."""
INTERVAL = "30s"
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_OURS = ("headrace_", "llm_engine_", "gen_ai_", "vllm_")

_TOTAL = "headrace_requests_total"
_HISTOGRAMS = {
    Measure.LATENCY: "gen_ai_server_request_duration_seconds",
    Measure.TTFT: "gen_ai_server_time_to_first_token_seconds",
    Measure.TPOT: "gen_ai_server_time_per_output_token_seconds",
}


class Burn(msgspec.Struct, frozen=True):
    """A row of the table."""

    severity: str
    long: str
    short: str
    rate: float


BURNS = (
    Burn("page", "1h", "5m", 14.4),
    Burn("page", "6h", "30m", 6.0),
    Burn("ticket", "1d", "2h", 3.0),
    Burn("ticket", "3d", "6h", 1.0),
)
WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")


class ServiceRules(msgspec.Struct, frozen=True, kw_only=True):
    """What rules are made of."""

    service: ServiceName
    custom_metrics: tuple[CustomMetric, ...] = ()
    objectives: tuple[Objective, ...] = ()


class Rule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A recording rule (`record`) or an alert (`alert`)."""

    record: str = ""
    alert: str = ""
    expr: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


def service_rules(spec: ServiceRules) -> str:
    """Return a rules file. Raises `UserError` for names that Prometheus cannot take or that are taken."""
    return service_groups([spec])


def service_groups(specs: Sequence[ServiceRules]) -> str:
    """Return a rules file with a group for each service that has any rule. Raises as `service_rules`."""
    groups = {f"headrace-{spec.service}": _rules(spec) for spec in specs}
    return rules_file({name: rules for name, rules in groups.items() if rules})


def _rules(spec: ServiceRules) -> list[Rule]:
    names = [objective.name for objective in spec.objectives]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(f"objectives of {spec.service}: more than one {min(twice)}")
    return [*_custom(spec), *_slo_records(spec), *_slo_alerts(spec)]


def rules_file(groups: dict[str, Sequence[Rule]]) -> str:
    """Return the YAML of rule groups."""
    lines = ["groups:" if groups else "groups: []"]
    for name, rules in groups.items():
        lines += [f"  - name: {_quoted(name)}", f"    interval: {INTERVAL}", "    rules:"]
        for rule in rules:
            lines += _rule_lines(rule)
    return "\n".join(lines) + "\n"


def _rule_lines(rule: Rule) -> Iterable[str]:
    kind, name = ("record", rule.record) if rule.record else ("alert", rule.alert)
    yield f"      - {kind}: {_quoted(name)}"
    yield f"        expr: {_quoted(rule.expr)}"
    for title, pairs in (("labels", rule.labels), ("annotations", rule.annotations)):
        if pairs:
            yield f"        {title}:"
            yield from (f"          {key}: {_quoted(value)}" for key, value in pairs.items())


def _quoted(text: str) -> str:
    """Return a YAML scalar: JSON's strings are such."""
    return json.dumps(text, ensure_ascii=False)


def _custom(spec: ServiceRules) -> Iterable[Rule]:
    seen: set[str] = set()
    for metric in spec.custom_metrics:
        name = metric.name
        if not _NAME.fullmatch(name) or name.startswith(_OURS):
            raise UserError(
                f"customMetrics of {spec.service}: {name!r} cannot be the name of a metric",
                hint="letters, digits and _, not beginning with a digit or one of "
                + ", ".join(_OURS),
            )
        if name in seen:
            raise UserError(f"customMetrics of {spec.service}: {name!r} is there twice")
        if not metric.expression.strip():
            raise UserError(f"customMetrics of {spec.service}: {name!r} has no expression")
        seen.add(name)
        yield Rule(record=name, expr=metric.expression.strip(), labels={"service": spec.service})


def _slo_records(spec: ServiceRules) -> Iterable[Rule]:
    for objective in spec.objectives:
        labels = {"service": spec.service, "objective": objective.name}
        for window in WINDOWS:
            expr = bad_ratio(spec.service, objective, window)
            yield Rule(record=RECORD + window, expr=expr, labels=labels)


def bad_ratio(service: str, objective: Objective, window: str) -> str:
    """Return the expression for the share of a service's requests that break an objective."""
    own = f"service={_quoted(service)}"
    total = f'sum(rate({_TOTAL}{{{own},evidence!="none"}}[{window}]))'
    if objective.measure is Measure.AVAILABILITY:
        bad = f'sum(rate({_TOTAL}{{{own},evidence="bad"}}[{window}]))'
        # Where nothing ever went wrong there is no such series.
        return f"({bad} or vector(0)) / {total}"
    histogram = _HISTOGRAMS[objective.measure]
    if objective.measure is Measure.LATENCY:
        own += ',error_type=""'
    if objective.measure is Measure.TPOT:
        # Of a single token there is none, so not all requests have one.
        total = f"sum(rate({histogram}_count{{{own}}}[{window}]))"
    le = _quoted(spelled(objective.bound_s))
    good = f"sum(rate({histogram}_bucket{{{own},le={le}}}[{window}]))"
    return f"clamp_min(1 - ({good} or vector(0)) / {total}, 0)"


def _slo_alerts(spec: ServiceRules) -> Iterable[Rule]:
    for objective in spec.objectives:
        for burn in BURNS:
            threshold = burn.rate * objective.budget
            if threshold >= 1.0:
                continue
            yield Rule(
                alert="HeadraceErrorBudgetBurn",
                expr=_burning(spec.service, objective, burn, threshold),
                labels={
                    "severity": burn.severity,
                    "service": spec.service,
                    "objective": objective.name,
                    "window": burn.long,
                },
                annotations={
                    "summary": f"{spec.service} breaks {objective.name}",
                    "description": (
                        f"{{{{ $value | humanizePercentage }}}} of the requests of the last {burn.long} break it; "
                        f"{objective.budget:.4g} may: the budget of 30 days goes {burn.rate:g} times too fast."
                    ),
                },
            )


def _burning(service: str, objective: Objective, burn: Burn, threshold: float) -> str:
    own = f"service={_quoted(service)},objective={_quoted(objective.name)}"
    of_service = f'service={_quoted(service)},evidence!="none"'
    return (
        f"{RECORD}{burn.long}{{{own}}} > {threshold:.6g} and {RECORD}{burn.short}{{{own}}} > {threshold:.6g} "
        f"and on () sum(increase({_TOTAL}{{{of_service}}}[{burn.long}])) >= {LEAST}"
    )
