"""What the Grafana dashboards show, in a few lines a panel; `scripts/dashboards.py` writes them. Knows names of metrics, reads none."""
