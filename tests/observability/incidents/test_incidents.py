"""Every incident fires what its scene asks for, on both lines of Prometheus; quiet scenes and a day of normal load fire nothing."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controlplane.prometheus import PrometheusError
from incidents.__main__ import MEASURED
from incidents.play import Firing, Played, Prepared, complaints, delay_minutes, play, prepare
from incidents.scene import Expected, Scene, SceneError, read_scene, scenes
from mixin.alerts import ALERTS, rule_groups

pytestmark = pytest.mark.timeout(900)
SCENES = scenes()
BY_KEY = {scene.key: scene for scene in SCENES}
INCIDENTS = [scene for scene in SCENES if not scene.is_quiet and not scene.is_reported]
QUIET = [scene for scene in SCENES if scene.is_quiet and not scene.is_reported]
REPORTED = [scene for scene in SCENES if scene.is_reported]
SHORT = BY_KEY["headroom-low"]


@pytest.fixture(scope="session")  # for both lines of Prometheus
def prepared() -> Prepared:
    return prepare(SCENES, rule_groups())


@pytest.fixture(scope="module")
def played(prometheus_assets: Path, prepared: Prepared) -> Played:
    return play(prometheus_assets, prepared)


@pytest.mark.slow
@pytest.mark.parametrize("scene", INCIDENTS, ids=lambda scene: scene.key)
def test_an_incident_fires_what_it_must_and_nothing_else(played: Played, scene: Scene) -> None:
    assert complaints(scene, played[scene.key]) == []


@pytest.mark.slow
@pytest.mark.parametrize("scene", QUIET, ids=lambda scene: scene.key)
def test_a_quiet_scene_fires_nothing(played: Played, scene: Scene) -> None:
    assert complaints(scene, played[scene.key]) == []


@pytest.mark.slow
def test_a_day_of_normal_load_fires_nothing_at_all(played: Played) -> None:
    day = BY_KEY["normal-day"]
    assert day.minutes == (0, 24 * 60, 24 * 60)
    assert day.may_fire == {}
    assert played[day.key] == []


@pytest.mark.slow
def test_the_page_has_the_delays_that_are_measured(played: Played) -> None:
    """To the minute, up to one: lines of Prometheus differ in whether a range has its left end."""
    rows = list(csv.DictReader(MEASURED.read_text(encoding="utf-8").splitlines()))
    assert {(row["scene"], row["alert"]) for row in rows} == {
        (each.key, alert) for each in SCENES for alert in each.fires
    }
    far = [
        row
        for row in rows
        if (found := delay_minutes(BY_KEY[row["scene"]], played[row["scene"]], row["alert"])) is None
        or abs(found - int(row["delay_minutes"])) > 1
    ]
    assert far == [], "run `PYTHONPATH=tools python -m incidents` and `make generate`, and commit"


@pytest.mark.slow
@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_without_an_alert_some_incident_fails(played: Played, alert: Any) -> None:
    noticed = [
        scene.key
        for scene in INCIDENTS
        if complaints(scene, [firing for firing in played[scene.key] if firing.alert != alert.name])
    ]
    assert noticed, f"no scene of tests/observability/incidents needs {alert.name}"


def test_rules_without_alerts_are_noticed(prometheus_assets: Path) -> None:
    groups = rule_groups()["groups"]
    recorded = [group | {"rules": [rule for rule in group["rules"] if "record" in rule]} for group in groups]
    silent = play(prometheus_assets, prepare([SHORT], {"groups": recorded}))
    assert silent == {SHORT.key: []}
    assert complaints(SHORT, silent[SHORT.key]) == ["KvgateHeadroomLow does not fire"]


def test_an_alert_that_loses_the_cluster_is_noticed(prometheus_assets: Path) -> None:
    rule = {"alert": "KvgateLoses", "expr": "max by (namespace) (kvgate_replicas) > 0"}
    groups = {"groups": [{"name": "kvgate", "rules": [rule]}]}
    with pytest.raises(PrometheusError, match="these alerts lose the label cluster: KvgateLoses"):
        play(prometheus_assets, prepare([SHORT, BY_KEY["short-peak"]], groups))


def test_there_are_enough_scenes_and_each_names_alerts_that_exist() -> None:
    names = {alert.name for alert in ALERTS}
    assert len(INCIDENTS) >= 30
    assert len(QUIET) >= 8
    assert sum(not scene.is_quiet for scene in REPORTED) >= 80
    assert sum(scene.is_quiet for scene in REPORTED) >= 40
    assert all(scene.source.startswith("https://") for scene in REPORTED)
    assert len({scene.source for scene in REPORTED}) >= 0.95 * len(REPORTED), "one report makes one scene"
    assert {
        name
        for scene in SCENES
        for name in (*scene.fires, *scene.may_fire, *([scene.runbook] if scene.runbook else []))
    } <= names


@pytest.mark.parametrize("scene", INCIDENTS, ids=lambda scene: scene.key)
def test_silence_in_an_incident_is_noticed(scene: Scene) -> None:
    assert complaints(scene, []) == [f"{alert} does not fire" for alert in scene.fires]


@pytest.mark.parametrize("scene", QUIET, ids=lambda scene: scene.key)
def test_a_page_in_a_quiet_scene_is_noticed(scene: Scene) -> None:
    assert len(complaints(scene, [firing(5, 9)])) == 1


def firing(first: int, last: int, *, minutes: int | None = None, **labels: str) -> Firing:
    lasted = last - first + 1 if minutes is None else minutes
    return Firing(alert="KvgateX", labels=labels, first_minute=first, last_minute=last, minutes=lasted)


INCIDENT = msgspec.structs.replace(
    SHORT, minutes=(10, 60, 120), fires={"KvgateX": Expected(within=15, labels={"pod": "a"})}, may_fire={}
)


@pytest.mark.parametrize(
    ("firings", "complaint"),
    [
        pytest.param([firing(20, 70, pod="a", more="b")], None, id="as expected"),
        pytest.param([firing(20, 70, pod="b")], "KvgateX does not fire with {'pod': 'a'}", id="another label"),
        pytest.param([firing(9, 70, pod="a")], "KvgateX fires 1 min before the incident begins", id="too early"),
        pytest.param([firing(26, 70, pod="a")], "KvgateX fires 16 min after the beginning, later", id="too late"),
        pytest.param([firing(20, 70, minutes=40, pod="a")], "KvgateX resolves and fires again: 40 min", id="twice"),
        pytest.param([firing(20, 106, pod="a")], "KvgateX still fires 46 min after the end", id="for ever"),
        pytest.param(
            [firing(20, 70, pod="a"), firing(21, 70, pod="c")], "KvgateX fires 2 times at once", id="two pages"
        ),
    ],
)
def test_each_way_to_be_wrong_is_noticed(firings: Sequence[Firing], complaint: str | None) -> None:
    found = complaints(INCIDENT, firings)
    assert len(found) == (0 if complaint is None else 1)
    assert all(each.startswith(complaint or "") for each in found)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"minutes": [10, 5, 60]}, "minutes: 10, 5, 60 are not in order"),
        ({"firse": {}}, "Object contains unknown field `firse`"),
        ({"deployments": {"a/b": {"pods": {}, "sise": 1}}}, "unknown field `sise`"),
    ],
    ids=["minutes", "key", "inner key"],
)
def test_a_scene_that_cannot_be_read_names_its_file(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    told = {"name": "x", "what": "y", "minutes": [0, 1, 2], **change}
    (tmp_path / "x.yaml").write_text(msgspec.yaml.encode(told).decode(), encoding="utf-8")
    with pytest.raises(SceneError, match=rf"x\.yaml: .*{problem}"):
        read_scene(tmp_path / "x.yaml")


def test_an_unknown_load_is_an_error() -> None:
    pods = {"chat-0": {0: "busy", 10: "bussy"}}
    broken = msgspec.structs.replace(
        SHORT, deployments={"serving/chat": msgspec.structs.replace(SHORT.deployments["serving/chat"], pods=pods)}
    )
    with pytest.raises(SceneError, match="no load is called 'bussy'"):
        prepare([broken], rule_groups())


def test_a_question_that_promtool_does_not_answer_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It refuses queries over too many samples, which must not read as silence."""
    answered = 'expr: "count_over_time(ALERTS[6m:1m])", time: 5m,\n exp: nil\n got: {cluster="x"} 1E+00\n'
    refused = 'expr: "count_over_time(ALERTS[9m:1m])", time: 8m, err: query processing would load too many samples\n'

    def reports(*_: object, **__: object) -> str:
        raise PrometheusError(answered + refused)

    monkeypatch.setattr("incidents.play.run_rule_tests", reports)
    with pytest.raises(PrometheusError, match="too many samples"):
        play(tmp_path, prepare([BY_KEY["restart-storm"]], {"groups": []}))
