"""Dashboards for OpenShift's console: what it cannot draw is not there, and no query is lost or changed."""

import json
from typing import Any

import pytest

from mixin import DASHBOARDS
from mixin.openshift import _LEFT_OUT, console_json
from support.chart import CHART

DRAWN = {"row", "graph", "singlestat"}
"""Of the types that openshift/monitoring-plugin draws: gauge, grafana-piechart-panel, graph, singlestat, table, and row."""
MEBIBYTE = 1 << 20


def boards(uid: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The dashboard of Grafana, and that of the console."""
    grafana = (CHART / "dashboards" / f"{uid}.json").read_text(encoding="utf-8")
    return json.loads(grafana), json.loads(console_json(grafana))


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_the_chart_has_what_is_made_here(uid: str) -> None:
    text = (CHART / "openshift" / f"{uid}.json").read_text(encoding="utf-8")
    assert json.loads(text) == boards(uid)[1]
    assert len(text.encode()) < MEBIBYTE


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_every_panel_is_of_a_type_that_the_console_draws(uid: str) -> None:
    panels = boards(uid)[1]["panels"]
    assert {panel["type"] for panel in panels} <= DRAWN
    for panel in (each for each in panels if each["type"] != "row"):
        assert 1 <= panel["span"] <= 12
        assert panel["targets"]


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_no_query_is_lost_or_changed(uid: str) -> None:
    grafana, console = boards(uid)
    expected = [
        [target["expr"] for target in panel["targets"]]
        for panel in grafana["panels"]
        if panel.get("targets") and panel["type"] not in _LEFT_OUT
    ]
    assert [
        [target["expr"] for target in panel["targets"]] for panel in console["panels"] if "targets" in panel
    ] == expected


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_variables_are_those_that_the_console_knows(uid: str) -> None:
    board = boards(uid)[1]
    names = {variable["name"] for variable in board["templating"]["list"]}
    assert all(isinstance(variable["query"], str) for variable in board["templating"]["list"])
    text = json.dumps(board["panels"])
    assert "${" not in text
    used = {word.split('"')[0] for word in text.replace("\\", "").split("$")[1:]}
    built_in = {"__rate_interval", "__range", "__interval", "1"}  # $1 is a group of label_replace
    assert {word.split("]")[0].split(")")[0] for word in used} <= {*names, *built_in}


def test_units_and_legends_are_those_of_the_console() -> None:
    def panel(kind: str, unit: str, **target: str) -> dict[str, Any]:
        return {
            "type": kind, "title": "Preemptions", "gridPos": {"w": 8}, "fieldConfig": {"defaults": {"unit": unit}},
            "targets": [{"expr": "up", "refId": "A", **target}],
        }  # fmt: skip

    board = {
        "title": "b", "tags": [], "templating": {"list": []},
        "panels": [panel("timeseries", "suffix: / min", legendFormat="__auto"), panel("stat", "bytes"), panel("table", "")],
    }  # fmt: skip
    graph, stat = json.loads(console_json(json.dumps(board)))["panels"]
    assert (graph["title"], graph["yaxes"], graph["span"]) == ("Preemptions / min", [{"format": ""}], 4)
    assert graph["targets"][0]["legendFormat"] == "{{namespace}} {{inferencedeployment}}"
    assert (stat["type"], stat["format"]) == ("singlestat", "bytes")
