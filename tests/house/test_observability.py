"""The files that start Prometheus and Grafana agree with the compose file and with each other."""

from __future__ import annotations

from typing import Any

import yaml

from tests.house.source_tree import ROOT

DEPLOY = ROOT / "deploy"


def read(*path: str) -> Any:
    return yaml.safe_load(DEPLOY.joinpath(*path).read_text())


SERVICES = read("compose.yaml")["services"]
OBSERVERS = read("observability.yaml")["services"]


def option(service: str, name: str) -> str:
    """Return an option of a service's command line."""
    command = SERVICES[service]["command"]
    return str(command[command.index(name) + 1])


def test_prometheus_looks_where_the_services_of_the_compose_file_have_their_pages():
    jobs = read("prometheus", "prometheus.yml")["scrape_configs"]
    looked_at = {
        (name, str(config["port"]))
        for job in jobs
        for config in job["dns_sd_configs"]
        for name in config["names"]
    }

    assert ["/host/engines.json"] == [
        file
        for job in jobs
        for config in job.get("file_sd_configs", [])
        for file in config["files"]
    ]
    assert looked_at == {
        ("gateway", option("gateway", "--http-port")),
        ("engine", option("engine", "--metrics-port")),
        *((name, option(name, "--metrics-port")) for name in ("kvstore", "operator", "host")),
        ("tracer", SERVICES["tracer"]["ports"][0].rpartition(":")[2]),
    }
    assert {"0.0.0.0"} == {  # noqa: S104 - compared, not bound
        option("gateway", "--http-host"),
        option("engine", "--metrics-host"),
        *(option(name, "--metrics-host") for name in ("kvstore", "operator", "host")),
        option("tracer", "--metrics-host"),
    }


def test_grafana_finds_prometheus_and_the_dashboards():
    (source,) = read("grafana", "provisioning", "datasources", "prometheus.yml")["datasources"]
    (provider,) = read("grafana", "provisioning", "dashboards", "headrace.yml")["providers"]
    mounts = dict(mount.split(":")[:2] for mount in OBSERVERS["grafana"]["volumes"])

    assert "http://prometheus:9090" == source["url"]
    assert "prometheus" in OBSERVERS
    assert mounts["./grafana/dashboards"] == provider["options"]["path"]
    assert list((DEPLOY / "grafana" / "dashboards").glob("*.json"))


def test_they_start_only_when_asked_for_and_on_loopback():
    for service in OBSERVERS.values():
        assert ["observability"] == service["profiles"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
