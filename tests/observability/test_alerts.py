"""Every alert on both lines of Prometheus: silent, pending, firing with its words, resolved, and what it does without its series."""

from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import pytest
import yaml

from controlplane.prometheus import PrometheusError, check_rules
from kvgate.monitoring.alert import Alert
from kvgate.monitoring.alerts import ALERTS, RUNBOOKS, rule_groups
from observability.rule_tests import Json, run, situation
from observability.scenes import SCENES, Scene

GOOD_MINUTES = 10
BY_NAME = {alert.name: alert for alert in ALERTS}


def minutes(duration: str) -> int:
    """5m, 1h."""
    return int(duration[:-1]) * {"m": 1, "h": 60}[duration[-1]]


def expected(scene: Scene, alert: Alert) -> Json:
    return {
        "exp_labels": {**scene.labels, "severity": alert.severity},
        "exp_annotations": {
            "summary": scene.summary,
            "description": scene.description,
            "runbook_url": f"{RUNBOOKS}/{alert.name}.md",
        },
    }


def timeline(scene: Scene, alert: Alert) -> Json:
    """The alert at each moment that matters."""
    begins = GOOD_MINUTES + scene.settles_minutes + minutes(alert.holds_for)
    over = GOOD_MINUTES + scene.bad_minutes
    moments = {
        GOOD_MINUTES - 1: False,
        begins - scene.settles_minutes - 1: False,
        begins: True,
        over - 1: True,
        over + scene.settles_minutes + 1: False,
        over + 19: False,
        over + 20 + 30: scene.fires_without_all,
    }
    return situation(scene.series) | {
        "alert_rule_test": [
            {
                "alertname": alert.name,
                "eval_time": f"{moment}m",
                "exp_alerts": [expected(scene, alert)] if fires else [],
            }
            for moment, fires in moments.items()
        ]
    }


def at_its_worst(scene: Scene, series: Mapping[str, str], *, fires: bool) -> Json:
    """Whether it fires when it would, given other series."""
    firing = f'count(ALERTS{{alertname="{scene.alert}",alertstate="firing"}})'
    moment = GOOD_MINUTES + scene.bad_minutes - 1
    return situation(series) | {
        "promql_expr_test": [
            {"expr": firing, "eval_time": f"{moment}m", "exp_samples": [{"labels": "{}", "value": 1}] if fires else []}
        ]
    }


def without_each(scene: Scene) -> list[Json]:
    return [
        at_its_worst(
            scene,
            {other: values for other, values in scene.series.items() if other != name},
            fires=name not in scene.needed,
        )
        for name in scene.series
    ]


def with_innocent(scene: Scene) -> list[Json]:
    return [at_its_worst(scene, {**scene.series, **instead}, fires=False) for instead in scene.innocent]


def test_every_alert_has_a_scene() -> None:
    assert {scene.alert for scene in SCENES} == set(BY_NAME)


def test_promtool_finds_nothing_wrong_with_the_rules(prometheus_assets: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule_groups()), encoding="utf-8")
    check_rules(prometheus_assets, tmp_path / "rules.yaml")


def test_every_alert_is_silent_fires_and_resolves(prometheus_assets: Path, tmp_path: Path) -> None:
    run(prometheus_assets, tmp_path, [timeline(scene, BY_NAME[scene.alert]) for scene in SCENES])


def test_every_alert_survives_the_lack_of_each_series(prometheus_assets: Path, tmp_path: Path) -> None:
    nothing = [at_its_worst(scene, {}, fires=scene.fires_without_all) for scene in SCENES]
    run(prometheus_assets, tmp_path, [*chain.from_iterable(map(without_each, SCENES)), *nothing])


def test_every_alert_leaves_the_innocent_alone(prometheus_assets: Path, tmp_path: Path) -> None:
    run(prometheus_assets, tmp_path, list(chain.from_iterable(map(with_innocent, SCENES))))


def test_these_tests_would_notice_an_alert_that_is_missing(prometheus_assets: Path, tmp_path: Path) -> None:
    none = {"groups": [group for group in rule_groups()["groups"] if "record" in group["rules"][0]]}
    with pytest.raises(PrometheusError) as noticed:
        run(prometheus_assets, tmp_path, [timeline(scene, BY_NAME[scene.alert]) for scene in SCENES], none)
    assert {name for name in BY_NAME if f"alertname: {name}," in str(noticed.value)} == set(BY_NAME)
