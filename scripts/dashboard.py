"""Write Grafana's dashboard of docs/metrics.md anew: `python scripts/dashboard.py`.

Panels are in dashboard_rows.py as queries and legends; their places and looks follow from that.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dashboard_panels import Panel
from dashboard_rows import ROWS

FILE = Path(__file__).parents[1] / "docker" / "grafana" / "dashboards" / "omnistage.json"
SOURCE = {"type": "prometheus", "uid": "prometheus"}
WIDTH, NUM_COLUMNS, HEIGHT, ROW_HEIGHT = 8, 3, 7, 1  # in Grafana's grid, which is 24 wide


def dashboard() -> dict[str, Any]:
    """Return the dashboard in the form that Grafana reads."""
    variable = {
        "name": "server",
        "label": "Server",
        "type": "query",
        "datasource": SOURCE,
        "query": {
            "query": "label_values(omnistage_num_requests_running, instance)",
            "refId": "A",
        },
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": ["All"], "value": ["$__all"]},
    }
    return {
        "uid": "omnistage",
        "title": "Omnistage",
        "schemaVersion": 41,
        "version": 1,
        "editable": False,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [variable]},
        "panels": [{"id": number, **one} for number, one in enumerate(placed(), 1)],
    }


def placed() -> Iterator[dict[str, Any]]:
    """Yield all rows and panels with their places."""
    top = 0
    for row in ROWS:
        place = {"x": 0, "y": top, "w": WIDTH * NUM_COLUMNS, "h": ROW_HEIGHT}
        yield {"title": row.title, "type": "row", "gridPos": place, "collapsed": False}
        top += ROW_HEIGHT
        for number, panel in enumerate(row.panels):
            line, column = divmod(number, NUM_COLUMNS)
            yield drawn(panel, column * WIDTH, top + line * HEIGHT)
        top += -(-len(row.panels) // NUM_COLUMNS) * HEIGHT


def drawn(panel: Panel, left: int, top: int) -> dict[str, Any]:
    """Return one panel in the form that Grafana reads."""
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.limit is not None:
        low, high = ("red", "green") if panel.kind == "stat" else ("green", "red")
        steps = [{"color": low, "value": None}, {"color": high, "value": panel.limit}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        if panel.kind == "timeseries":
            defaults["custom"] = {"thresholdsStyle": {"mode": "line"}}
    return {
        "title": panel.title,
        "description": panel.about,
        "type": panel.kind,
        "gridPos": {"x": left, "y": top, "w": WIDTH, "h": HEIGHT},
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": letter, "expr": query.expression, "legendFormat": query.legend}
            for letter, query in zip("ABCDEFGH", panel.queries, strict=False)
        ],
    }


def text() -> str:
    """Return the content of the file."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
