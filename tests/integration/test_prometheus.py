"""A real Prometheus scrapes a real gateway, engine and tracer: every alias, stage, rule and panel finds what it names."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.ids import ServiceName
from shared.messages import STAGES
from shared.metric_aliases import ALIASES
from shared.objectives import parse_objective
from shared.prom_rules import ServiceRules, service_rules
from shared.spec.model import CustomMetric
from tests.house.source_tree import ROOT
from tests.support.gateway_process import Site
from tests.support.nats_server import NatsServer, free_port
from tests.support.prometheus import Prometheus, promtool
from tests.support.promql import metrics_of

REQUESTS = 30
"""Enough for bands of blame."""
DASHBOARDS = {
    file.stem: json.loads(file.read_text())
    for file in sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
}
RULES = ROOT / "deploy" / "prometheus" / "rules" / "platform.yml"
OBJECTIVES = ("availability >= 99.9%", "P99 < 2s", "P95 TTFT < 500ms", "P99 TPOT < 50ms")
BUILT_IN = {"up", "ALERTS"}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
BROKEN_JSON = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    "max_tokens": 2,
}
QUIET = {
    # Nothing of this happens in a short calm run.
    "ALERTS",
    "headrace_lost_attempts_total",
    "headrace_gateway_retries_total",
    "llm_engine_refused_total",
    "headrace_blocked_seconds_total",
    "llm_engine_step_bound_seconds",
    # Needs more traces than a tracer without a collector makes.
    "headrace_tracer_traces_kept_total",
}
"""Metrics whose panels may show nothing here."""


class Watched:
    """A platform that has answered, and the Prometheus that scrapes it."""

    def __init__(self, site: Site, prometheus: Prometheus, ports: dict[str, int]) -> None:
        self.service = site.service
        self.prometheus = prometheus
        self.pages = {job: _page(port) for job, port in ports.items()}
        self.names = {
            line.split()[2]
            for page in self.pages.values()
            for line in page.splitlines()
            if line.startswith("# TYPE")
        }


def _page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


@pytest.fixture(scope="module")
def watched(nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Gateway, engine and tracer with a few dozen requests behind them, scraped twice a second."""
    folder = tmp_path_factory.mktemp("prometheus")
    with Site(nats_server, folder) as site:
        ports = {job: free_port() for job in ("gateway", "engine", "kvstore", "tracer")}
        site.add_engine(
            *("--version", "v1", "--fake-step-s", "0.002", "--metrics-port", str(ports["engine"]))
        )
        site.add_gateway("--metrics-port", str(ports["gateway"]))
        site.add_tracer("--metrics-port", str(ports["tracer"]))
        site.add_store("--metrics-port", str(ports["kvstore"]))
        asyncio.run(site.ready())
        (folder / "rules.yml").write_text(_quick_rules(site.service))
        with Prometheus(folder, _config(folder, ports)) as prometheus:
            prometheus.until('sum(up{job=~"headrace-.*"}) == 4')
            asyncio.run(_use(site))
            # Two scrapes after the last request: rates are of what lies between two.
            prometheus.until(
                f'sum(headrace_requests_total{{service="{site.service}"}}) > {REQUESTS}'
            )
            asyncio.run(_use(site))
            total = f'sum(headrace_requests_total{{service="{site.service}"}})'
            prometheus.until(f"{total} >= {2 * (REQUESTS + 1)}")
            yield Watched(site, prometheus, ports)


def _config(folder: Path, ports: dict[str, int]) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(folder / "rules.yml")],
        "scrape_configs": [
            {
                "job_name": f"headrace-{job}",
                "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
            }
            for job, port in ports.items()
        ],
    }


def _quick_rules(service: str) -> str:
    """Return the rules of a service, looked at as often as it is scraped."""
    spec = ServiceRules(
        service=ServiceName(service),
        custom_metrics=(CustomMetric(name="own_rps", expression="sum(http_requests_total)"),),
        objectives=tuple(parse_objective(text) for text in OBJECTIVES),
    )
    return re.sub("interval: .*", "interval: 500ms", service_rules(spec))


async def _use(site: Site) -> None:
    question = [{"role": "user", "content": "What is in the ledger of a request? " * 20}]
    bodies: list[dict[str, Any]] = [{"max_tokens": 8} for _ in range(REQUESTS)]
    bodies += [BROKEN_JSON, {"max_tokens": 0}]
    await asyncio.gather(*(site.ask({"messages": question, **body}) for body in bodies))


@pytest.mark.parametrize("alias", ALIASES, ids=lambda alias: alias.name)
def test_a_name_that_runbooks_query_has_the_values_of_its_source(watched: Watched, alias):
    suffix = "_count" if alias.source.endswith("_seconds") else ""
    own = f'{{service="{watched.service}"}}'

    found = watched.prometheus.query(f"sum({alias.name}{suffix}{own})")
    same = watched.prometheus.query(
        f"sum({alias.name}{suffix}{own}) - sum({alias.source}{suffix}{own})"
    )

    assert found, f"{alias.name} has no data"
    if alias.name != "vllm_kv_cache_fragmentation_ratio":
        assert float(found[0]["value"][1]) > 0
    assert 0 == float(same[0]["value"][1])
    labels = watched.prometheus.query(f"{alias.name}{suffix}{own}")[0]["metric"]
    assert alias.copies.keys() <= labels.keys()
    assert (alias.page == "engine") == ("engine" in labels)


def test_each_stage_of_each_request_is_in_its_histogram(watched: Watched):
    own = f'{{service="{watched.service}"}}'
    query = watched.prometheus.query

    counts = {
        row["metric"]["stage"]: float(row["value"][1])
        for row in query(f"sum by (stage) (headrace_stage_duration_seconds_count{own})")
    }
    spent = query(f"sum(headrace_stage_duration_seconds_sum{own})")
    whole = query(f"sum(gen_ai_server_request_duration_seconds_sum{own})")

    assert set(STAGES) == counts.keys()
    assert 2 * (REQUESTS + 1) == counts["decode"]
    assert 0.01 > abs(float(spent[0]["value"][1]) / float(whole[0]["value"][1]) - 1)


def test_requests_have_labels_of_service_version_engine_and_class(watched: Watched):
    own = f'{{service="{watched.service}",outcome="finished"}}'
    (series,) = watched.prometheus.query(f"headrace_requests_total{own}")

    labels = series["metric"]

    assert ("v1", "default", "2xx", "good") == tuple(
        labels[name] for name in ("version", "class", "status", "evidence")
    )
    engine = watched.prometheus.query(f'llm_engine_steps_total{{engine="{labels["engine"]}"}}')
    assert 1 == len(engine)


def test_rules_of_a_service_are_evaluated(watched: Watched):
    prometheus, own = watched.prometheus, f'{{service="{watched.service}"}}'

    ratios = prometheus.until(f"count(headrace_slo:bad_ratio:rate5m{own}) == {len(OBJECTIVES)}")
    custom = prometheus.until(f"own_rps{own} >= {2 * REQUESTS}")

    assert ratios
    assert custom
    rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert {"ok"} == {rule["health"] for rule in rules}, rules


@pytest.mark.parametrize("job", ["gateway", "engine", "kvstore", "tracer"])
def test_a_page_is_as_prometheus_wants_it(watched: Watched, job: str):
    promtool("check", "metrics", stdin=watched.pages[job].encode())


def _queries(dashboard: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (panel["title"], target["expr"])
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]


def _chosen(expression: str) -> str:
    """Return an expression of a dashboard as Grafana asks it with everything chosen."""
    for name, value in {"$__rate_interval": "1m", "$service": ".*", "$engine": ".*"}.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


def _known(name: str, families: set[str]) -> bool:
    bare = re.sub("_(bucket|count|sum)$", "", name)
    return bool({name, bare} & (families | BUILT_IN)) or name.startswith("headrace_slo:")


@pytest.mark.parametrize("name", DASHBOARDS)
def test_each_panel_names_metrics_that_exist_and_shows_data(watched: Watched, name: str):
    unknown, empty = [], []
    for title, expression in _queries(DASHBOARDS[name]):
        metrics = metrics_of(expression)
        assert metrics, expression
        unknown += [(title, each) for each in metrics if not _known(each, watched.names)]
        if not metrics & QUIET and not watched.prometheus.query(_chosen(expression)):
            empty.append((title, expression))

    assert [] == unknown
    assert [] == empty


def test_each_alert_of_the_platform_names_metrics_that_exist(watched: Watched):
    rules = [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]

    unknown = [
        (rule["alert"], each)
        for rule in rules
        for each in metrics_of(rule["expr"])
        if not _known(each, watched.names)
    ]

    assert len(rules) >= 10
    assert [] == unknown


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_is_one_that_grafana_can_load(name: str):
    dashboard = DASHBOARDS[name]
    panels, variables = dashboard["panels"], dashboard["templating"]["list"]

    assert name == dashboard["uid"]
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)
    assert "datasource" == variables[0]["type"]
    for panel in panels:
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24
        for target in panel.get("targets", ()):
            assert "${datasource}" == target["datasource"]["uid"]
    squares = [
        (x, y)
        for panel in panels
        for grid in (panel["gridPos"],)
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(set(squares)) == len(squares), "panels lie over each other"


def test_names_are_found_in_expressions():
    """What finds the names must not miss any, or the tests above say nothing."""
    expression = (
        'sum by (le, engine) (rate(a_bucket{x="no_{name}",y=~"b.*"}[$__rate_interval])) / on () group_left (c) '
        "clamp_min(d:e:rate5m offset 5m, 1e3) and on () vector(0) > 2 or f unless g"
    )

    assert {"a_bucket", "d:e:rate5m", "f", "g"} == metrics_of(expression)
