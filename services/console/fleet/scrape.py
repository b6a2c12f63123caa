"""A Prometheus configuration that scrapes the processes of one platform on this machine. Pure: plans in, text out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from services.console.fleet.plan import ProcessPlan

RULES = Path("deploy", "prometheus", "rules")
"""Where a checkout has the platform's alerts."""
INTERVAL_S = 5


def scrape_config(plans: Sequence[ProcessPlan], *, rules: Path, engines: Path) -> str:
    """Return the YAML: a job for each kind of process; `engines` is the file that names those of the engines.

    Rules of a folder that is not there are no rules, to Prometheus too.
    """
    lines = [
        "# Made by `headrace up` at each start: ports change. Use it with `prometheus --config.file=…`.",
        f"global: {{scrape_interval: {INTERVAL_S}s, evaluation_interval: 15s}}",
        f"rule_files: [{json.dumps(str(rules / '*.yml'))}]",
        "scrape_configs:",
    ]
    jobs: dict[str, list[ProcessPlan]] = {}
    for plan in plans:
        jobs.setdefault(plan.module.rpartition(".")[2], []).append(plan)
    for job, members in jobs.items():
        lines += [f"  - job_name: headrace-{job}", "    static_configs:"]
        for plan in members:
            target = json.dumps(f"127.0.0.1:{plan.metrics_port}")
            lines.append(f"      - {{targets: [{target}], labels: {{process: {plan.name}}}}}")
    lines += ["  - job_name: headrace-engine", "    file_sd_configs:"]
    lines.append(
        f"      - {{files: [{json.dumps(str(engines))}], refresh_interval: {INTERVAL_S}s}}"
    )
    return "\n".join(lines) + "\n"
