"""The dashboards for OpenShift's console, which draws the panels of Grafana 6 only and leaves out every other one without a word.

Source of what it draws: openshift/monitoring-plugin, web/src/components/dashboards/legacy (commit 0442ce5f, 2026).
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

_TYPES = {"stat": "singlestat", "gauge": "singlestat"}
"""The console's type for a panel of Grafana; every other panel with a query is drawn as a graph."""
_LEFT_OUT = ("table", "text", "alertlist", "annolist", "dashlist", "logs")
"""The console joins the rows of a table by all of their labels, so a table of several queries falls apart."""
_COLUMNS = 12
_UNITS = ("bytes", "s", "ms", "percentunit")
"""Units that both know."""
_OWN_LEGEND, _NONE = "{{namespace}} {{inferencedeployment}}", ("", "__auto")
"""The legend where Grafana would make one by itself: the console makes none."""

Json = dict[str, Any]


def console_json(grafana: str) -> str:
    """Return a dashboard of Grafana for the console: the same queries and variables, in panels that it draws."""
    board = json.loads(grafana)
    variables = [
        {key: variable[key] for key in ("name", "query", "type", "includeAll", "hide")}
        for variable in board["templating"]["list"]
        if variable["type"] == "query"
    ]
    shown = {
        "title": board["title"],
        "tags": board["tags"],
        "templating": {"list": variables},
        "panels": list(_panels(board["panels"])),
    }
    return json.dumps(shown, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def _panels(panels: list[Json]) -> Iterator[Json]:
    for panel in panels:
        if panel["type"] == "row":
            yield {"type": "row", "title": panel["title"], "showTitle": True}
            yield from _panels(panel.get("panels") or [])
        elif panel["type"] not in _LEFT_OUT and panel.get("targets"):
            yield _panel(panel)


def _panel(panel: Json) -> Json:
    defaults: Mapping[str, Any] = panel.get("fieldConfig", {}).get("defaults", {})
    unit = str(defaults.get("unit", ""))
    format_, postfix = (
        unit if unit in _UNITS else "",
        unit.removeprefix("suffix:") if unit.startswith("suffix:") else "",
    )
    drawn = {
        "title": f"{panel['title']} {postfix.strip()}".strip(),
        "type": _TYPES.get(panel["type"], "graph"),
        "span": round(panel["gridPos"]["w"] * _COLUMNS / 24),
        "targets": [
            {
                "expr": target["expr"],
                "refId": target["refId"],
                "legendFormat": _OWN_LEGEND if legend in _NONE else legend,
            }
            for target in panel["targets"]
            for legend in (str(target.get("legendFormat") or ""),)
        ],
    }
    if drawn["type"] == "graph":
        stacking = defaults.get("custom", {}).get("stacking", {}).get("mode", "none")
        return {**drawn, "legend": {"show": True}, "stack": stacking != "none", "yaxes": [{"format": format_}]}
    return {**drawn, "format": format_, "decimals": defaults.get("decimals", 2)}
