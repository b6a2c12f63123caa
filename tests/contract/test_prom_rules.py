"""Prometheus takes our rules and configuration, and alerts fire on what they are about and on nothing else: real promtool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shared.ids import ServiceName
from shared.objectives import parse_objective
from shared.prom_rules import BURNS, WINDOWS, ServiceRules, service_rules
from shared.spec.model import CustomMetric
from tests.house.source_tree import ROOT
from tests.support.prometheus import promtool

DEPLOYED = ROOT / "deploy" / "prometheus"
ALERT = "HeadraceErrorBudgetBurn"
REQUESTS = 'headrace_requests_total{service="s",engine="e",evidence="%s"}'
TOOK = 'gen_ai_server_request_duration_seconds_bucket{service="s",error_type="",le="%s"}'


def test_the_deployed_configuration_is_valid():
    promtool("check", "config", "prometheus.yml", cwd=DEPLOYED)


def test_the_platforms_alerts_fire_on_what_they_are_about():
    promtool("test", "rules", "rules_test.yml", cwd=DEPLOYED)


def written(folder: Path, *objectives: str, **custom: str) -> Path:
    """Write a service's rules file."""
    spec = ServiceRules(
        service=ServiceName("s"),
        custom_metrics=tuple(
            CustomMetric(name=name, expression=text) for name, text in custom.items()
        ),
        objectives=tuple(parse_objective(text) for text in objectives),
    )
    file = folder / "rules.yml"
    file.write_text(service_rules(spec))
    return file


def test_prometheus_takes_a_whole_spec_and_an_empty_one(tmp_path):
    text = 'sum(rate(http_requests_total{status=~"5.."}[1m]))\n  / 2'
    objectives = ("availability >= 99.9%", "P99 < 2s", "P95 TTFT < 500ms", "P99 TPOT < 50ms")

    whole = promtool("check", "rules", written(tmp_path, *objectives, failing=text, two="2"))
    empty = promtool("check", "rules", written(tmp_path))

    assert f"{2 + 4 * len(WINDOWS) + 4 * len(BURNS)} rules found" in whole
    assert "0 rules found" in empty


def play(folder: Path, series: dict[str, str], *checks: dict[str, Any]) -> None:
    """Run the rules of `folder` over series of a value a minute."""
    one = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [each for each in checks if "alertname" in each],
        "promql_expr_test": [each for each in checks if "expr" in each],
    }
    whole = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [one]}
    (folder / "test.yml").write_text(json.dumps(whole))
    promtool("test", "rules", "test.yml", cwd=folder)


def firing(objective: str, budget: str, **share_of: str) -> list[dict[str, Any]]:
    """Return the alerts that are to fire by their long windows, with the share of bad requests that each tells of."""
    return [
        {
            "exp_labels": {
                "severity": burn.severity,
                "service": "s",
                "objective": objective,
                "window": burn.long,
            },
            "exp_annotations": {
                "summary": f"s breaks {objective}",
                "description": f"{share_of[f'in_{burn.long}']} of the requests of the last {burn.long} break it; "
                f"{budget} may: the budget of 30 days goes {burn.rate:g} times too fast.",
            },
        }
        for burn in BURNS
        if f"in_{burn.long}" in share_of
    ]


def alerts(at: str, *expected: dict[str, Any]) -> dict[str, Any]:
    """Return a check of all alerts that fire at a time."""
    return {"eval_time": at, "alertname": ALERT, "exp_alerts": [*expected]}


def ratio(at: str, objective: str, value: float) -> dict[str, Any]:
    """Return a check of the recorded share of bad requests in the last 5 minutes."""
    labels = f'{{service="s",objective="{objective}"}}'
    return {
        "expr": f"round(headrace_slo:bad_ratio:rate5m{labels}, 0.001)",
        "eval_time": at,
        "exp_samples": [{"labels": labels, "value": value}],
    }


def test_an_outage_burns_both_budgets_and_what_callers_choose_does_not(tmp_path):
    """A hundred requests a minute; after an hour a fifth of them fails."""
    written(tmp_path, "availability >= 99.9%", "P99 < 2s")
    since_begin = dict.fromkeys(("in_6h", "in_1d", "in_3d"), "9.916%")

    play(
        tmp_path,
        {
            REQUESTS % "good": "0+100x60 6000+80x120",
            REQUESTS % "bad": "0x60 0+20x120",
            REQUESTS % "none": "0+500x180",
            TOOK % "2.0": "0+100x60 6000+80x120",
        },
        alerts("59m"),
        alerts(
            "2h",
            *firing("availability", "0.001", in_1h="20%", **since_begin),
            *firing("latency_p99", "0.01", in_1h="20%", **since_begin),
        ),
        ratio("59m", "availability", 0.0),
        ratio("2h", "availability", 0.2),
        ratio("2h", "latency_p99", 0.2),
    )


def test_slow_answers_burn_the_latency_budget(tmp_path):
    written(tmp_path, "availability >= 99.9%", "P99 < 2s")

    play(
        tmp_path,
        {REQUESTS % "good": "0+100x60", TOOK % "2.0": "0+95x60", TOOK % "5.12": "0+100x60"},
        # 5% are slow: that is no page by the hour (14.4%) nor by six (6%).
        alerts("1h", *firing("latency_p99", "0.01", in_1d="5%", in_3d="5%")),
        ratio("1h", "latency_p99", 0.05),
    )


def test_few_requests_are_no_evidence_and_none_that_is_good_is_all_bad(tmp_path):
    written(tmp_path, "availability >= 99.9%", "P99 < 2s")

    play(
        tmp_path,
        {REQUESTS % "bad": "0+1x9 9x51"},
        alerts("15m"),
        ratio("9m", "availability", 1.0),
        ratio("9m", "latency_p99", 1.0),
    )
