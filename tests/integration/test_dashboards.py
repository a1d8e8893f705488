"""Dashboards and rules over a fleet under pressure, on both lines of Prometheus: every query is answered, and can be drawn."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from fleet.monitored import Fleet, monitored
from mixin import DASHBOARDS, DEPLOYMENT
from mixin.alerts import rule_groups
from mixin.dashboards import dashboard_json
from pictures.dashboard import WIDTH, draw
from pictures.grafana import panels
from query_table import EMPTY_BY_DESIGN, EMPTY_WHILE_QUIET, TARGET, Asked, column, everything, series_count
from support.pictures import require_matplotlib

ONE = "llama-3-1-8b"
MOST_BYTES = 300 * 1000


@pytest.fixture(scope="module")
def fleet(prometheus_assets: Path) -> Iterator[Fleet]:
    with monitored(prometheus_assets) as found:
        yield found


@pytest.fixture(scope="module")
def quiet_fleet(prometheus_assets: Path) -> Iterator[Fleet]:
    with monitored(prometheus_assets, is_busy=False) as found:
        yield found


def documented(title: str) -> list[str]:
    """This column of the committed page."""
    found = []
    for line in TARGET.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if line.startswith("| what"):
            at = cells.index(title)
        elif line.startswith("| "):
            found.append(cells[at])
    return found


def counted(fleet: Fleet) -> list[tuple[Asked, int]]:
    """The answers, all of them finite, at the end of the window and over it."""
    return [(asked, series_count(asked, fleet)) for asked in everything()]


def as_documented(counts: list[tuple[Asked, int]]) -> list[str]:
    return [str(count) if asked.is_counted else "varies" for asked, count in counts]


def test_everything_that_is_asked_finds_finite_values_as_the_page_says(fleet: Fleet) -> None:
    counts = counted(fleet)
    assert {asked.expression for asked, count in counts if count == 0 and asked.is_counted} == set(EMPTY_BY_DESIGN)
    assert any(count for asked, count in counts if not asked.is_counted), "an alert fires"
    assert as_documented(counts) == documented(column(fleet, is_busy=True)), "run tools/query_table.py and commit"


def test_while_nobody_asks_for_anything_there_are_zeros_or_the_text_of_the_panel(quiet_fleet: Fleet) -> None:
    counts = counted(quiet_fleet)
    assert as_documented(counts) == documented(column(quiet_fleet, is_busy=False)), (
        "run tools/query_table.py and commit"
    )
    found = {(asked.where, asked.expression) for asked, count in counts if count}
    for uid in DASHBOARDS:
        for panel in panels(json.loads(dashboard_json(uid))):
            if not any((uid, target["expr"]) in found for target in panel["targets"]):
                assert panel["fieldConfig"]["defaults"]["noValue"] in EMPTY_WHILE_QUIET, panel["title"]


def test_every_rule_is_evaluated(fleet: Fleet) -> None:
    rules = fleet.prometheus.rules()
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
    assert len(rules) == sum(len(group["rules"]) for group in rule_groups()["groups"])


def asked_for(where: str, what: str) -> str:
    (found,) = (asked for asked in everything() if (asked.where, asked.what) == (where, what))
    return found.expression


def labels(fleet: Fleet, expression: str, name: str) -> set[str]:
    filled = re.sub(r"\$\w+", ".*", expression)
    return {sample.labels[name] for sample in fleet.prometheus.query(filled, at_seconds=fleet.window.end_seconds)}


def test_an_old_release_is_seen_under_the_names_of_its_time(fleet: Fleet) -> None:
    assert labels(fleet, 'vllm:gpu_cache_usage_perc{inferencedeployment="qwen3-8b"}', "pod")
    assert not labels(fleet, 'vllm:kv_cache_usage_perc{inferencedeployment="qwen3-8b"}', "pod")
    pods = labels(fleet, "vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc", "pod")
    assert {"qwen3-8b-0", "qwen3-32b-0"} <= pods


def test_a_pod_of_ours_that_somebody_else_scrapes_too_is_not_without_an_owner(fleet: Fleet) -> None:
    assert fleet.prometheus.query('vllm:num_requests_running{job="their-own"}', at_seconds=fleet.window.end_seconds)
    assert labels(fleet, asked_for("kvgate-fleet", "KV cache in use by others"), "workload") == {"chatbot"}


def test_an_answer_that_is_not_finite_is_told(fleet: Fleet) -> None:
    with pytest.raises(Exception, match="here, this"):
        series_count(Asked(where="here", what="this", expression="vector(1) / 0"), fleet)


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_a_dashboard_is_drawn(fleet: Fleet, uid: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    require_matplotlib(pytestconfig)
    window = replace(fleet.window, chosen={"inferencedeployment": ONE} if uid == DEPLOYMENT else {})
    draw(json.loads(dashboard_json(uid)), fleet.prometheus, window, tmp_path / "board.png")
    with Image.open(tmp_path / "board.png") as image:
        assert image.width == WIDTH <= 1012, "a page is no wider"
        assert len(image.convert("RGB").getcolors(1 << 24) or ()) > 50
    assert (tmp_path / "board.png").stat().st_size < MOST_BYTES
