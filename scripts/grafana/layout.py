"""Dashboards as values, and as the JSON that Grafana stores: positions, ids, units and variables are worked out here."""

from __future__ import annotations

import json
from typing import Any

import msgspec

SCHEMA = 38
"""Of Grafana 10; newer ones migrate it when they load it."""
WIDTH, HEIGHT = 24, 8
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """One graph: expressions with their legends."""

    title: str
    queries: dict[str, str]
    """Expression → legend."""
    unit: str = "short"
    text: str = ""
    kind: str = "timeseries"
    is_stacked: bool = False
    width: int = 8
    most: float | None = None
    """Upper end of the axis."""


class Dashboard(msgspec.Struct, frozen=True, kw_only=True):
    """One page: rows of panels under headings."""

    uid: str
    title: str
    text: str
    rows: dict[str, list[Panel]]
    variables: dict[str, str] = {}
    """Name → metric whose label of that name has the values."""


def panel_json(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    """Return a panel as Grafana stores it."""
    custom = {"fillOpacity": 60 if panel.is_stacked else 8, "showPoints": "never"}
    if panel.is_stacked:
        custom["stacking"] = {"mode": "normal"}
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0, "custom": custom}
    if panel.most is not None:
        defaults["max"] = panel.most
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": HEIGHT},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": DATASOURCE,
                "expr": expr,
                "legendFormat": legend,
            }
            for index, (expr, legend) in enumerate(panel.queries.items())
        ],
    }


def panels_json(dashboard: Dashboard) -> list[dict[str, Any]]:
    """Return headings and panels, placed from left to right and top to bottom."""
    placed: list[dict[str, Any]] = []
    y = 0
    for heading, panels in dashboard.rows.items():
        grid = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        row: dict[str, Any] = {
            "id": len(placed) + 1,
            "type": "row",
            "title": heading,
            "gridPos": grid,
        }
        placed.append({**row, "collapsed": False, "panels": []})
        y, x = y + 1, 0
        for panel in panels:
            if x + panel.width > WIDTH:
                x, y = 0, y + HEIGHT
            placed.append(panel_json(panel, len(placed) + 1, x, y))
            x += panel.width
        y += HEIGHT
    return placed


def variables_json(dashboard: Dashboard) -> list[dict[str, Any]]:
    """Return the datasource's variable and those that filter."""
    source = {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
    }
    filters = [
        {
            "name": name,
            "type": "query",
            "datasource": DATASOURCE,
            "query": {"query": f"label_values({metric}, {name})", "refId": name},
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
            "sort": 1,
        }
        for name, metric in dashboard.variables.items()
    ]
    return [source, *filters]


def dashboard_json(dashboard: Dashboard) -> str:
    """Return the file of a dashboard."""
    whole = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.text,
        "tags": ["headrace"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": variables_json(dashboard)},
        "annotations": {"list": []},
        "links": [
            {"type": "dashboards", "title": "Headrace", "tags": ["headrace"], "asDropdown": True}
        ],
        "panels": panels_json(dashboard),
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
