"""The dashboards as Grafana reads them: names, links, units and places."""

import builtins
import json
import re
import sys
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

from generate.files import dashboard
from kvgate.metrics import registry
from kvgate.monitoring import DASHBOARDS, DEPLOYMENT, FLEET
from kvgate.monitoring.dashboards import dashboard_json
from kvgate.monitoring.panels import GREEN, ORANGE, RED
from kvgate.vllm.metric_names import SCRAPED_NAMES
from pictures.grafana import panels, target_expressions, variable_queries

NOT_ON_A_DASHBOARD: dict[str, str] = {
    "kvgate_background_errors_total": "0 for ever unless kvgate has a defect or the API server is away; the log says which",
    "kvgate_model_resolutions_total": "0 for ever unless models.resolve is hub, which is off by default",
    "kvgate_models_waiting": "0 for ever unless models.resolve is hub, which is off by default",
    "kvgate_pinned_kv_cache_tokens": "the band of the predicted interval, which has no width then, shows it",
    "kvgate_forgone_kv_cache_bytes": "it never changes while a verdict stands; it is for reports about a fleet",
    "kvgate_host_memory_bytes": "it never changes while a verdict stands; alerts about pods compare it with cAdvisor's figures",
    "kvgate_kv_cache_demand_tokens": "alerts compare it with the observed capacity; panels show the demand in bytes",
    "kvgate_load_budget_seconds": "alerts about starts compare with it",
    "kvgate_observed_kv_cache_headroom_ratio": "the recording rule of that name has it",
    "kvgate_observed_kv_cache_headroom_tokens": "panels show the ratio",
    "kvgate_pod_info": "it joins other series with their owner",
    "kvgate_pod_kv_cache_capacity_tokens": "panels show the smallest of all pods",
    "kvgate_pod_kv_cache_headroom_tokens": "panels show the smallest of all pods",
    "kvgate_pod_ready": "alerts about starts need it",
    "kvgate_pod_restarts_total": "alerts about starts need it",
    "kvgate_pod_start_time_seconds": "alerts about starts need it",
    "kvgate_queue_depth": "alerts about kvgate itself need it",
    "kvgate_ready_replicas": "alerts about replicas need it",
    "kvgate_recalibrated_kv_cache_capacity_tokens": "absent unless a verdict stands that would be another one now",
    "kvgate_replicas": "alerts about replicas need it",
    "kvgate_updated_replicas": "alerts about replicas need it",
    "kvgate_models_stored": "0 for ever unless models.resolve is hub, which is off by default",
}
"""Metrics of ours that no panel shows, each with the reason."""
OF_THE_PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}
"""What prometheus_client exports of every process; kvgate's targets serve them."""
NAME = re.compile(r"\b(?:vllm:|kvgate[_:]|process_)[a-z_:]+")
SUFFIXES = ("_bucket", "_sum", "_count")


@pytest.fixture(params=DASHBOARDS)
def board(request: pytest.FixtureRequest) -> dict[str, Any]:
    return load(request.param)


def load(uid: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(dashboard_json(uid))
    return found


def expressions(board: dict[str, Any]) -> Iterator[str]:
    """Of panels and of variables."""
    yield from target_expressions(board)
    yield from (selector for _, selector in variable_queries(board))


def metric_names(expression: str) -> Iterator[str]:
    """Names, a histogram's series under its own."""
    for name in NAME.findall(expression):
        base = next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)
        yield base if base in {metric.name for metric in registry.METRICS} | SCRAPED_NAMES else name


def test_the_uids_are_those_that_bookmarks_have() -> None:
    assert DASHBOARDS == ("kvgate-fleet", "kvgate-deployment", "kvgate-self")


def test_a_dashboard_has_its_uid_and_no_id(board: dict[str, Any]) -> None:
    assert board["uid"] in DASHBOARDS
    assert "id" not in board
    assert (board["timezone"], board["refresh"]) == ("browser", "30s")


def test_every_metric_that_is_asked_for_exists(board: dict[str, Any]) -> None:
    known = {metric.name for metric in registry.METRICS} | SCRAPED_NAMES | OF_THE_PROCESS
    asked = {name for expression in expressions(board) for name in metric_names(expression)}
    assert asked
    assert asked - known == set()


def test_every_metric_of_ours_is_on_a_dashboard_or_has_a_reason_not_to_be() -> None:
    shown = {name for uid in DASHBOARDS for expression in expressions(load(uid)) for name in metric_names(expression)}
    assert {metric.name for metric in registry.METRICS} - shown == set(NOT_ON_A_DASHBOARD)


def test_every_panel_says_what_it_shows_and_in_which_unit(board: dict[str, Any]) -> None:
    for panel in panels(board):
        assert panel["description"], panel["title"]
        columns = [override["properties"] for override in panel["fieldConfig"]["overrides"]]
        units = [found["value"] for properties in columns for found in properties if found["id"] == "unit"]
        in_words = panel["type"] == "state-timeline" or panel["options"].get("textMode") == "name"
        assert in_words or panel["fieldConfig"]["defaults"].get("unit") or units, panel["title"]
        assert panel["fieldConfig"]["defaults"]["noValue"], panel["title"]


def test_every_query_goes_to_the_chosen_prometheus(board: dict[str, Any]) -> None:
    assert board["templating"]["list"][0]["name"] == "datasource"
    for panel in panels(board):
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert {source["uid"] for source in sources} == {"${datasource}"}


def test_every_variable_that_is_used_is_defined(board: dict[str, Any]) -> None:
    defined = {variable["name"] for variable in board["templating"]["list"]}
    used = set(re.findall(r"\$([a-z]+)\b", " ".join(expressions(board))))
    assert used - defined == set()


def test_links_lead_to_dashboards_that_exist(board: dict[str, Any]) -> None:
    targets = re.findall(r'"/d/([^"?/]+)', json.dumps(board))
    assert set(targets) <= set(DASHBOARDS)
    others = set(DASHBOARDS) - {board["uid"]}
    assert {link["url"] for link in board["links"]} == {f"/d/{uid}?${{datasource:queryparam}}" for uid in others}


def test_all_of_the_fleet_is_not_handed_to_a_dashboard_of_one(board: dict[str, Any]) -> None:
    assert not any(link["includeVars"] for link in board["links"])
    assert all(link["keepTime"] for link in board["links"])


def test_a_row_of_the_fleet_leads_to_its_deployment() -> None:
    (table,) = (panel for panel in panels(load(FLEET)) if panel["type"] == "table")
    links = [found["value"][0]["url"] for override in table["fieldConfig"]["overrides"]
             for found in override["properties"] if found["id"] == "links"]  # fmt: skip
    variables = {variable["name"] for variable in load(DEPLOYMENT)["templating"]["list"]}
    (url,) = links
    assert set(re.findall(r"var-(\w+)=", url)) <= variables
    assert "${__data.fields.namespace}" in url
    assert "${__data.fields.inferencedeployment}" in url


def test_no_two_panels_overlap_and_none_leaves_the_grid(board: dict[str, Any]) -> None:
    places = [panel["gridPos"] for panel in board["panels"]]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        )  # fmt: skip
        assert apart, (one, other)


def test_panels_that_look_a_series_up_by_name_name_one_that_is_there(board: dict[str, Any]) -> None:
    for panel in panels(board):
        if panel["type"] == "timeseries":
            legends = {target["legendFormat"] for target in panel["targets"]}
            named = {override["matcher"]["options"] for override in panel["fieldConfig"]["overrides"]}
            assert named <= legends or any("{{" in legend for legend in legends), panel["title"]


@pytest.mark.parametrize(("condition", "colour"), [("Stalled", RED), ("PredictionDrift", ORANGE), ("Ready", GREEN)])
def test_a_condition_that_is_true_has_the_colour_of_what_it_means(condition: str, colour: str) -> None:
    (panel,) = (panel for panel in panels(load(DEPLOYMENT)) if panel["type"] == "state-timeline")
    (override,) = (each for each in panel["fieldConfig"]["overrides"] if each["matcher"]["options"] == condition)
    ((mapping,),) = (found["value"] for found in override["properties"] if found["id"] == "mappings")
    assert (mapping["options"]["1"]["text"], mapping["options"]["1"]["color"]) == ("True", colour)
    assert len({each["color"] for each in mapping["options"].values()}) == 3, "told apart"


def test_without_the_sdk_generate_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    importing = builtins.__import__

    def refusing(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("grafana_foundation_sdk"):
            raise ModuleNotFoundError("No module named 'grafana_foundation_sdk'", name="grafana_foundation_sdk")
        return importing(name, *rest, **more)

    for module in [name for name in sys.modules if name.startswith(("kvgate.monitoring.", "grafana_foundation_sdk"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", refusing)
    with pytest.raises(SystemExit, match=r"no module grafana_foundation_sdk: .* `make init` installs it"):
        dashboard(FLEET)
