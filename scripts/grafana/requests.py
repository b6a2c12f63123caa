"""Dashboards about requests: how they fare, which stage is to blame, what was promised."""

from __future__ import annotations

from scripts.grafana.layout import Dashboard, Panel
from scripts.grafana.queries import (
    BAD,
    EACH,
    ENDED,
    FIRST,
    JUDGED,
    RATE,
    SERVICE,
    WHOLE,
    S,
    quantile,
    quantiles,
    rate,
)


def blame(band: str) -> Panel:
    """Return what the latency of a band of requests is made of."""
    own = f'{{{S},band="{band}"}}'
    stages = rate(f"headrace_blame_stage_seconds_total{own}", "stage")
    return Panel(
        title=f"What {band} is made of",
        queries={
            f"{stages} / on () group_left () {rate(f'headrace_blame_requests_total{own}')}": "{{stage}}"
        },
        unit="s",
        text="Mean time by stage of the requests of this band: p50 is the middle half of all requests, p95 and p99 those beyond.",
        is_stacked=True,
        width=12,
    )


OVERVIEW = Dashboard(
    uid="headrace-overview",
    title="Headrace / Overview",
    text="How requests fare, and which stage is to blame.",
    variables=SERVICE,
    rows={
        "Requests": [
            Panel(
                title="Ended, by outcome",
                queries={rate(ENDED, "outcome"): "{{outcome}}"},
                unit="reqps",
                is_stacked=True,
            ),
            Panel(
                title="Bad, of those that count",
                queries={f"({rate(BAD)} or vector(0)) / {rate(JUDGED)}": "bad"},
                unit="percentunit",
                text="Failed, refused for want of room, or past the platform's own deadline. What callers choose does not count.",
            ),
            Panel(
                title="Waiting and under way",
                queries={
                    "sum by (class) (headrace_gateway_queued)": "waiting, {{class}}",
                    "sum(headrace_gateway_open_calls)": "under way",
                },
            ),
        ],
        "Blame": [
            blame("p50"),
            blame("p99"),
            Panel(
                title="Where all time goes",
                queries={
                    f"sum by (stage) (rate(headrace_stage_seconds_total{{{S}}}{RATE}))": "{{stage}}"
                },
                unit="s",
                text="Seconds of requests spent in each stage, each second.",
                is_stacked=True,
                width=12,
            ),
            Panel(
                title="p99 of each stage",
                queries={
                    quantile(0.99, "headrace_stage_duration_seconds", by="stage"): "{{stage}}"
                },
                unit="s",
                text="Of all requests, each stage by itself; these do not add up to the p99 of a request.",
                width=12,
            ),
        ],
        "Latency": [
            Panel(title="Whole answer", queries=quantiles(WHOLE, f'{S},error_type=""'), unit="s"),
            Panel(title="First token", queries=quantiles(FIRST), unit="s"),
            Panel(title="Each further token", queries=quantiles(EACH), unit="s"),
            Panel(
                title="Longest pause in an answer",
                queries=quantiles("headrace_longest_token_gap_seconds"),
                unit="s",
            ),
            Panel(
                title="Held up by others' prompts",
                queries={
                    f"sum by (service) (rate(headrace_blocked_seconds_total{{{S}}}{RATE}))": "{{service}}"
                },
                unit="s",
                text="Seconds of decoding streams lost to prompts in the same steps, each second.",
            ),
            Panel(
                title="Tokens",
                queries={
                    f"sum by (direction) (rate(headrace_request_tokens_total{{{S}}}{RATE}))": "{{direction}}"
                },
                unit="short",
            ),
        ],
    },
)

SLO = Dashboard(
    uid="headrace-slo",
    title="Headrace / SLO and versions",
    text="Error budgets of the services that state objectives, and how versions compare.",
    variables=SERVICE,
    rows={
        "Objectives": [
            Panel(
                title="Breaking it, last 5 minutes",
                queries={f"headrace_slo:bad_ratio:rate5m{{{S}}}": "{{service}} {{objective}}"},
                unit="percentunit",
            ),
            Panel(
                title="Breaking it, last hour",
                queries={f"headrace_slo:bad_ratio:rate1h{{{S}}}": "{{service}} {{objective}}"},
                unit="percentunit",
            ),
            Panel(
                title="Breaking it, last 3 days",
                queries={f"headrace_slo:bad_ratio:rate3d{{{S}}}": "{{service}} {{objective}}"},
                unit="percentunit",
            ),
            Panel(
                title="Alerts",
                queries={
                    f'sum by (service, objective, severity, alertstate) (ALERTS{{alertname="HeadraceErrorBudgetBurn",{S}}})': (
                        "{{service}} {{objective}} {{severity}} {{alertstate}}"
                    )
                },
                width=24,
            ),
        ],
        "Versions": [
            Panel(title="Requests", queries={rate(ENDED, "version"): "{{version}}"}, unit="reqps"),
            Panel(
                title="Bad, of those that count",
                queries={f"{rate(BAD, 'version')} / {rate(JUDGED, 'version')}": "{{version}}"},
                unit="percentunit",
            ),
            Panel(
                title="p95 to the first token",
                queries={quantile(0.95, FIRST, by="version"): "{{version}}"},
                unit="s",
            ),
            Panel(
                title="p95 of a further token",
                queries={quantile(0.95, EACH, by="version"): "{{version}}"},
                unit="s",
            ),
            Panel(
                title="p95 of the whole answer",
                queries={quantile(0.95, WHOLE, f'{S},error_type=""', "version"): "{{version}}"},
                unit="s",
            ),
            Panel(
                title="Lost by an engine, by how they went on",
                queries={
                    rate(
                        f"headrace_lost_attempts_total{{{S}}}", "version, way"
                    ): "{{version}} {{way}}"
                },
            ),
        ],
        "Answers": [
            Panel(
                title="HTTP status",
                queries={rate(f"http_requests_total{{{S}}}", "status"): "{{status}}"},
                unit="reqps",
                width=12,
            ),
            Panel(
                title="JSON that is none",
                queries={
                    rate(
                        f"vllm_output_json_error_total{{{S}}}", "service, cause"
                    ): "{{service}} {{cause}}"
                },
                width=12,
            ),
        ],
    },
)
