"""Dashboards as drawn: names and numbers as Grafana writes them, tables as it joins them, words where there is no data."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from controlplane.prometheus import Sample, Series
from mixin import DASHBOARDS, DEPLOYMENT, FLEET
from mixin.dashboards import dashboard_json
from pictures.dashboard import figure, folded
from pictures.grafana import Window, everything_chosen, marks, panels, series_name, threshold_colour, variable_queries
from pictures.panels import table_rows
from pictures.units import scale, text_of
from support.pictures import require_matplotlib
from support.tables import table

WINDOW = Window(start_seconds=1_000_000, end_seconds=1_000_600, chosen={"namespace": "serving"})


@dataclass
class Answers:
    """A Prometheus that knows a few expressions by a word in them, and nothing of all others."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def query(self, expression: str, *, at_seconds: float | None = None) -> list[Sample]:
        self.asked.append(expression)
        return next((found for word, found in self.samples.items() if word in expression), [])

    def query_range(
        self, expression: str, *, start_seconds: float, end_seconds: float, step_seconds: float
    ) -> list[Series]:
        return [
            Series(labels=sample.labels, points=((start_seconds, sample.value), (end_seconds, sample.value)))
            for sample in self.query(expression)
        ]


def board(uid: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(dashboard_json(uid))
    return found


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_without_data_every_panel_says_what_is_missing(uid: str, pytestconfig: pytest.Config) -> None:
    require_matplotlib(pytestconfig)
    texts = [text.get_text() for text in figure(board(uid), Answers(), WINDOW).texts]
    expected = [panel["fieldConfig"]["defaults"]["noValue"] for panel in panels(board(uid))]
    assert sorted(text for text in texts if text in expected) == sorted(expected)


def test_a_figure_stands_under_its_title_in_its_unit(pytestconfig: pytest.Config) -> None:
    require_matplotlib(pytestconfig)
    known = {"kvgate_prediction_error_ratio": [Sample(labels={}, value=-0.086)]}
    texts = [text.get_text() for text in figure(board(DEPLOYMENT), Answers(known), WINDOW).texts]
    assert texts[texts.index("Prediction error") + 1] == "−8.6 %"


def test_rows_of_a_table_are_one_where_the_labels_that_they_share_are_the_same() -> None:
    _, table = (panel for panel in panels(board(FLEET)) if panel["type"] == "table")
    a, b = ({"namespace": "serving", "inferencedeployment": name} for name in "ab")
    known = {
        "deployment_info": [Sample(labels={**each, "model": "m"}, value=1) for each in (a, b)],
        "kvgate_prediction_error_ratio": [Sample(labels=b, value=0.25)],
    }
    window = Window(start_seconds=0, end_seconds=60, chosen=everything_chosen(board(FLEET)))
    rows = table_rows(table, Answers(known), window)
    assert rows == [{**a, "model": "m", "Value #A": 1}, {**b, "model": "m", "Value #A": 1, "Value #J": 0.25}]


def alerts_table() -> dict[str, Any]:
    table, _ = (panel for panel in panels(board(FLEET)) if panel["type"] == "table")
    return table


def drawn_texts(panel: dict[str, Any], source: Answers) -> list[str]:
    one = {"title": "", "description": "", "templating": {"list": []}, "panels": [panel]}
    return [text.get_text() for text in figure(one, source, WINDOW).texts]


def test_a_critical_alert_stands_first_and_then_the_newest_with_its_time(pytestconfig: pytest.Config) -> None:
    require_matplotlib(pytestconfig)
    since = {("KvgateOld", "warning"): 5400, ("KvgateNew", "warning"): 90, ("KvgateBad", "critical"): 7200}
    known = [
        Sample(labels={"alertname": name, "severity": severity}, value=1000 * (WINDOW.end_seconds - ago))
        for (name, severity), ago in since.items()
    ]
    texts = drawn_texts(alerts_table(), Answers({"ALERTS": known}))
    assert [text for text in texts if text.startswith("Kvgate")] == ["KvgateBad", "KvgateNew", "KvgateOld"]
    assert {"13:55:10", "12:26:40"} <= set(texts)
    assert "cluster" not in texts, "no row has one"


def test_the_ends_of_a_band_are_not_in_the_legend(pytestconfig: pytest.Config) -> None:
    require_matplotlib(pytestconfig)
    (panel,) = (each for each in panels(board(DEPLOYMENT)) if each["title"].startswith("KV cache of each pod"))
    known = {"kvgate_kv_cache_capacity_tokens": [Sample(labels={"pod": "a-0"}, value=1)]}
    texts = drawn_texts(panel, Answers(known))
    assert "predicted" in texts
    assert not {"predicted, low end", "predicted, high end"} & set(texts)


def test_a_start_is_marked_at_its_time_and_a_rollout_where_it_is_seen() -> None:
    started = WINDOW.start_seconds + 60
    known = {
        "pod_start_time": [Sample(labels={"pod": "a-0"}, value=1000 * started)],
        "updated_replicas": [Sample(labels={}, value=1)],
    }
    found = {(mark.name, mark.start_seconds) for mark in marks(board(DEPLOYMENT), Answers(known), WINDOW)}
    times = (WINDOW.start_seconds, WINDOW.end_seconds)
    assert found == {("Start of an engine", started), *(("Rollout", at) for at in times)}


def test_what_is_chosen_stands_in_the_queries_and_nothing_of_grafana_is_left() -> None:
    source = Answers()
    figure(board(FLEET), source, WINDOW)
    assert any('namespace=~"serving",inferencedeployment=~".+"' in expression for expression in source.asked)
    assert [expression for expression in source.asked if "$" in expression.replace('"$1"', "")] == []
    assert any("[60s]" in expression for expression in source.asked)
    assert any("[600s]" in expression for expression in source.asked)


@table(
    ("unit", "value", "decimals", "text"),
    [
        ("bytes", 42_000_000_000, None, "39.1 GiB"),
        ("bytes", 0, None, "0 B"),
        ("percentunit", 0.1811, None, "18.1 %"),
        ("percentunit", -1, None, "−100 %"),
        ("locale", 131072, None, "131,072"),
        ("short", 158224, None, "158 K"),
        ("s", 0.0235, None, "23.5 ms"),
        ("none", 4.832, None, "4.83"),
        ("none", 100, 1, "100"),
        ("suffix:days", 61.2, 0, "61 days"),
        ("suffix:/ min", 290.51, 1, "290.5 / min"),
    ],
)
def test_a_number_has_three_digits_that_matter_and_its_unit(
    unit: str, value: float, decimals: int | None, text: str
) -> None:
    assert text_of(unit, value, decimals) == text


def test_one_scale_holds_for_a_whole_axis() -> None:
    gib = scale("bytes", 80 * 2**30)
    assert (gib.text(2**29), gib.text(40 * 2**30)) == ("0.5 GiB", "40 GiB")


@pytest.mark.parametrize(
    ("legend", "name"),
    [("{{namespace}} / {{pod}}", "serving / a-0"), ("{{absent}}", ""), ("__auto", "serving, a-0"), ("p99", "p99")],
)
def test_a_series_is_called_as_the_legend_says(legend: str, name: str) -> None:
    assert series_name({"legendFormat": legend}, {"namespace": "serving", "pod": "a-0", "__name__": "up"}) == name


@pytest.mark.parametrize(("value", "colour"), [(-1, "red"), (0, "green"), (5, "green")])
def test_a_colour_holds_from_its_threshold_on(value: float, colour: str) -> None:
    steps = [{"value": None, "color": "red"}, {"value": 0, "color": "green"}]
    assert threshold_colour({"steps": steps}, value) == colour


def test_a_variable_that_is_no_list_of_label_values_is_named() -> None:
    variable = {"name": "pod", "type": "query", "query": "query_result(up)"}
    with pytest.raises(ValueError, match="variable pod: 'query_result"):
        list(variable_queries({"templating": {"list": [variable]}}))


@pytest.mark.parametrize(
    ("widths", "rows"),
    [
        ([3] * 8, [[6, 6, 6, 6], [6, 6, 6, 6]]),
        ([8, 8, 8], [[12, 12], [24]]),
        ([12, 12], [[24], [24]]),
        ([12, 8, 4], [[24], [12, 12]]),
        ([4] * 6, [[8, 8, 8], [8, 8, 8]]),
    ],
)
def test_panels_fold_to_a_page_without_a_gap(widths: list[int], rows: list[list[int]]) -> None:
    below = {"x": 0, "y": 5, "w": 24, "h": 1}
    starts = [sum(widths[:index]) for index in range(len(widths))]
    places = [{"x": x, "y": 1, "w": w, "h": 4} for x, w in zip(starts, widths, strict=True)]
    *found, last = folded([*places, below])
    assert [[place["w"] for place in found if place["y"] == 4 * number] for number in range(len(rows))] == rows
    assert last == {**below, "y": 4 * len(rows)}
