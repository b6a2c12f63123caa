"""Writes the Grafana dashboards of deploy/grafana/dashboards. `--check` only compares.

What they show stands in scripts/grafana.
tests/integration/test_prometheus.py holds every expression against the pages of running processes.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.grafana.layout import dashboard_json  # noqa: E402 - needs the path above
from scripts.grafana.machines import ENGINES, FLEET  # noqa: E402
from scripts.grafana.requests import OVERVIEW, SLO  # noqa: E402
from scripts.grafana.tiers import KV  # noqa: E402

FOLDER = ROOT / "deploy" / "grafana" / "dashboards"
DASHBOARDS = (OVERVIEW, ENGINES, KV, SLO, FLEET)


def main() -> int:
    """Write or compare all files; return 1 where one is stale."""
    files = {FOLDER / f"{each.uid}.json": dashboard_json(each) for each in DASHBOARDS}
    stale = [file for file, text in files.items() if not file.exists() or file.read_text() != text]
    if "--check" in sys.argv[1:]:
        for file in stale:
            sys.stderr.write(f"{file} is stale: run scripts/dashboards.py\n")
        return bool(stale)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for file in stale:
        file.write_text(files[file])
    return 0


if __name__ == "__main__":
    sys.exit(main())
