"""The dashboards as Grafana reads them: names, links, units and places."""

import ast
import builtins
import json
import re
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from fleet.monitored import judged_samples
from generate.files import dashboard
from kvgate.controller import reconcile
from kvgate.controller.observe import ScrapeResult
from kvgate.controller.starts import ObservedStarts
from kvgate.judgement.assessment import Decision
from kvgate.metrics import registry
from kvgate.vllm.metric_names import SCRAPED_NAMES
from kvgate.webhook.review import INVALID
from mixin import DASHBOARDS, DEPLOYMENT, FLEET, board_deployment, board_processes
from mixin.alerts import RUNBOOKS
from mixin.dashboards import dashboard_json
from mixin.expressions import DCGM
from mixin.looks import GREEN, ORANGE, RED
from mixin.queries import RECORDING_RULES
from pictures.grafana import annotation_expressions, panels, target_expressions, variable_queries
from support.chart import ROOT

NOT_ON_A_DASHBOARD: dict[str, str] = {
    "kvgate_kv_cache_capacity_bytes": "the term kv_cache of the ledger shows the expected one, and the graph in tokens the interval",
    "kvgate_kv_cache_demand_bytes": "the demand in tokens is shown, with the denominator of the capacity",
    "kvgate_observed_kv_cache_headroom_tokens": "the ratio is shown, with the denominator of the predicted headroom",
    "kvgate_pod_ready": "the graph of the replicas shows how many are ready",
    "kvgate_background_errors_total": "0 for ever unless kvgate has a defect or the API server is away; the log says which",
    "kvgate_model_resolutions_total": "0 for ever unless models.resolve is hub, which is off by default",
    "kvgate_replacements": "0 for ever unless an upgrade renders other pods; the condition ReplacementPending names each object",
    "kvgate_models_waiting": "0 for ever unless models.resolve is hub, which is off by default",
    "kvgate_pinned_kv_cache_tokens": "the band of the predicted interval, which has no width then, shows it",
    "kvgate_forgone_kv_cache_bytes": "it never changes while a verdict stands; it is for reports about a fleet",
    "kvgate_host_memory_bytes": "it never changes while a verdict stands; alerts about pods compare it with cAdvisor's figures",
    "kvgate_budget_skip_expiry_timestamp_seconds": "the table of the fleet shows whether a budget is skipped; its end is for queries",
    "kvgate_auto_max_model_len_tokens": "it never changes while a verdict stands; the figure of the longest request shows what pods serve",
    "kvgate_min_max_model_len_tokens": "it never changes while a verdict stands; KvgateLengthBelowFloor compares it",
    "kvgate_pod_max_model_len_tokens": "the shortest of all pods is shown; its runbook asks for each of them",
    "kvgate_models_stored": "0 for ever unless models.resolve is hub, which is off by default",
}
"""Metrics of ours that no panel shows, each with the reason."""
OF_THE_PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}
"""What prometheus_client exports of every process; kvgate's targets serve them."""
NAME = re.compile(r"\b(?:vllm:|kvgate[_:]|process_|DCGM_)[A-Za-z0-9_:]+")
SUFFIXES = ("_bucket", "_sum", "_count")


@pytest.fixture(params=DASHBOARDS)
def board(request: pytest.FixtureRequest) -> dict[str, Any]:
    return load(request.param)


def load(uid: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(dashboard_json(uid))
    return found


def expressions(board: dict[str, Any]) -> Iterator[str]:
    """Of panels, of annotations and of variables."""
    yield from target_expressions(board)
    yield from (expression for _, expression in annotation_expressions(board))
    yield from (selector for _, selector in variable_queries(board))


def metric_names(expression: str) -> Iterator[str]:
    """Names, a histogram's series under its own."""
    for name in NAME.findall(expression):
        base = next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)
        yield base if base in {metric.name for metric in registry.METRICS} | SCRAPED_NAMES else name


def test_the_uids_are_those_that_bookmarks_have() -> None:
    assert DASHBOARDS == ("kvgate-fleet", "kvgate-deployment", "kvgate-self")


def test_grafanas_own_types_read_the_dashboard_and_lose_nothing(board: dict[str, Any]) -> None:
    """The types are those of Grafana's SDK, which is made from its schema; of an annotation it does not know what is Prometheus' own."""
    read = json.loads(JSONEncoder().encode(models.Dashboard.from_json(board)))
    for mark in board.get("annotations", {}).get("list", []):
        assert {mark.pop(key) is not None for key in ("titleFormat", "textFormat", "useValueForTime", "step")} == {True}
    assert read == board


def test_a_dashboard_has_its_uid_and_no_id(board: dict[str, Any]) -> None:
    assert board["uid"] in DASHBOARDS
    assert "id" not in board
    assert (board["timezone"], board["refresh"]) == ("browser", "30s")


def test_every_metric_that_is_asked_for_exists(board: dict[str, Any]) -> None:
    recorded = {rule.name for rule in RECORDING_RULES}
    known = {metric.name for metric in registry.METRICS} | SCRAPED_NAMES | OF_THE_PROCESS | recorded | {*DCGM}
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


def links_of(uid: str, column: str) -> list[str]:
    """Addresses behind a column of the tables."""
    return [
        found["value"][0]["url"]
        for panel in panels(load(uid)) if panel["type"] == "table"
        for override in panel["fieldConfig"]["overrides"] if override["matcher"]["options"] == column
        for found in override["properties"] if found["id"] == "links"
    ]  # fmt: skip


def test_a_row_of_the_fleet_leads_to_its_deployment() -> None:
    variables = {variable["name"] for variable in load(DEPLOYMENT)["templating"]["list"]}
    for url in links_of(FLEET, "inferencedeployment"):
        assert re.findall(r"var-(\w+)=", url) == ["cluster", "namespace", "inferencedeployment"]
        assert set(re.findall(r"var-(\w+)=", url)) <= variables
        assert "${__data.fields.inferencedeployment}" in url


def test_an_alert_leads_to_its_runbook(board: dict[str, Any]) -> None:
    assert links_of(board["uid"], "alertname") == ["${runbooks}/${__data.fields.alertname}.md"]
    (runbooks,) = (variable for variable in board["templating"]["list"] if variable["name"] == "runbooks")
    assert runbooks["query"] == RUNBOOKS


def test_cluster_and_filters_can_be_chosen_everywhere(board: dict[str, Any]) -> None:
    types = {variable["name"]: variable["type"] for variable in board["templating"]["list"]}
    assert (types["cluster"], types["filters"]) == ("query", "adhoc")
    for expression in target_expressions(board):
        for selector in re.findall(r"((?:kvgate_|vllm:)\w+)(\{[^}]*\})?", expression):
            assert 'cluster=~"$cluster"' in selector[1] or selector[0] == registry.BUILD_INFO.name, selector


def test_axes_do_not_exaggerate(board: dict[str, Any]) -> None:
    """An axis begins at 0, or shows at least a fifth on both sides of what it compares; a ratio is seen up to 1."""
    for panel in panels(board):
        if panel["type"] != "timeseries":
            continue
        defaults = panel["fieldConfig"]["defaults"]
        low, high = defaults["custom"]["axisSoftMin"], defaults["custom"].get("axisSoftMax")
        assert low == 0 or (low, high) in {(0.8, 1.2), (-0.2, 0.2)}, panel["title"]
        assert defaults["unit"] != "percentunit" or high is not None, panel["title"]


def test_the_denominator_of_the_kv_cache_is_the_expected_capacity_everywhere() -> None:
    row = [
        panel
        for panel in panels(load(DEPLOYMENT))
        if "100 % is the expected predicted capacity" in panel["description"]
    ]
    assert len(row) == 3
    for panel in row:
        for target in panel["targets"]:
            assert target["expr"].count("kvgate_kv_cache_capacity_tokens") or "headroom_ratio" in target["expr"], (
                target["expr"]
            )


def test_a_band_has_one_entry_in_the_legend() -> None:
    for panel in panels(load(DEPLOYMENT)):
        names = {target["legendFormat"] for target in panel["targets"]}
        hidden = {
            override["matcher"]["options"] for override in panel["fieldConfig"]["overrides"]
            for found in override["properties"] if found["id"] == "custom.hideFrom"
        }  # fmt: skip
        assert hidden == {name for name in names if name.startswith("predicted, ")}, panel["title"]


def test_starts_rollouts_and_alerts_are_marked_on_the_graphs() -> None:
    marks = {mark["name"]: mark for mark in load(DEPLOYMENT)["annotations"]["list"]}
    assert list(marks) == ["Start of an engine", "Rollout", "Alert"]
    assert marks["Start of an engine"]["useValueForTime"]
    assert marks["Start of an engine"]["expr"].startswith("1000 * ")


def literals(path: str, called: str) -> set[str]:
    """Texts that are assigned to a variable, or given as an argument, of this name in a file of the package."""
    tree = ast.parse((ROOT / "operator/kvgate" / path).read_text(encoding="utf-8"))
    values: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == called:
            values.append(node.value)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == called:
            values.append(node.value)
    constants = (each for value in values for each in ast.walk(value) if isinstance(each, ast.Constant))
    return {each.value for each in constants if isinstance(each.value, str)}


def reconcile_results() -> set[str]:
    """Values that `_run` of a reconcile returns as the first of two, and those of its errors."""
    tree = ast.parse(Path(reconcile.__file__).read_text(encoding="utf-8"))
    returned = (
        node.value.elts[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and node.value.elts
    )
    constants = (each for value in returned for each in ast.walk(value) if isinstance(each, ast.Constant))
    words = {each.value for each in constants if isinstance(each.value, str) and each.value.isalpha()}
    return words | {name for _, name in reconcile._FAILED}


@pytest.mark.parametrize(
    ("shown", "emitted"),
    [
        pytest.param(board_processes.DECISIONS, {*Decision, INVALID}, id="admission"),
        pytest.param(board_processes.RECONCILE_RESULTS, reconcile_results(), id="reconcile"),
        pytest.param(board_processes.SCRAPE_RESULTS, {*ScrapeResult}, id="scrape"),
        pytest.param(board_processes.START_STATES, {*ObservedStarts(None).states}, id="starts"),
    ],
)
def test_the_values_that_are_shown_are_those_that_the_code_emits(
    shown: tuple[tuple[str, str], ...], emitted: set[str]
) -> None:
    assert {value for value, _ in shown} == emitted
    assert len({colour for _, colour in shown}) == len(shown), "told apart"


def test_the_terms_of_the_ledger_are_those_that_are_exported() -> None:
    exported = {term for sample in judged_samples() if sample.memory for term, _ in sample.memory.terms}
    assert exported | {"lora", "correction"} == {term for term, _, _ in board_deployment.TERMS}


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

    for module in [name for name in sys.modules if name.startswith(("mixin.", "grafana_foundation_sdk"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", refusing)
    with pytest.raises(SystemExit, match=r"no module grafana_foundation_sdk: .* `make init` installs it"):
        dashboard(FLEET)
