"""Every alert on both lines of Prometheus: silent, pending, firing with its words, resolved, and what gaps and missing series do to it."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from controlplane.prometheus import PrometheusError, check_rules
from mixin.alert import Alert
from mixin.alerts import ALERTS, rule_groups, runbook
from observability.rule_tests import Json, run, run_each, situation, spelled
from observability.scenes import AFTER, SCENES, Scene, Values

BY_NAME = {alert.name: alert for alert in ALERTS}
GAP_MINUTES = 4
"""Time for which scrapes of everything fail; the windows of the rules are longer."""


def minutes(duration: str) -> int:
    """5m, 1h."""
    return int(duration[:-1]) * {"m": 1, "h": 60}[duration[-1]]


def words(scene: Scene, alert: Alert) -> Json:
    return {
        "exp_labels": {**scene.labels, "severity": alert.severity},
        "exp_annotations": {"summary": scene.summary, "description": scene.description, **runbook(alert)},
    }


def state(scene: Scene, which: str, moment: int, *, holds: bool) -> Json:
    """Whether the alert is in this state at this minute."""
    asked = f'count(ALERTS{{alertname="{scene.alert}",alertstate="{which}"}})'
    return {"expr": asked, "eval_time": f"{moment}m", "exp_samples": [{"labels": "{}", "value": 1}] if holds else []}


def firing(scene: Scene, moment: int, *, fires: bool = True) -> Json:
    return state(scene, "firing", moment, holds=fires)


def played(series: Mapping[str, Values]) -> Json:
    return situation({name: spelled(values) for name, values in series.items()})


def begins(scene: Scene) -> int:
    """The minute at which it fires at the latest."""
    return scene.good_minutes + scene.settles_minutes + minutes(BY_NAME[scene.alert].holds_for)


def over(scene: Scene) -> int:
    """The first minute that is good again."""
    return scene.good_minutes + scene.bad_minutes


def timeline(scene: Scene) -> Json:
    """The alert at each moment that matters."""
    alert = BY_NAME[scene.alert]
    holds, keeps = minutes(alert.holds_for), minutes(alert.keeps_firing_for)
    moments = {
        scene.good_minutes - 1: False,
        scene.good_minutes + holds - 1: False,
        begins(scene): True,
        over(scene) - 1: True,
        over(scene) + keeps - 2: True,  # ranges of Prometheus 3 leave their left end out, and end a minute earlier
        over(scene) + scene.clears_minutes + keeps + 1: False,
        over(scene) + AFTER + 30: scene.fires_without_all,
    }
    pending = [state(scene, "pending", begins(scene) - 1, holds=True)] if scene.settles_minutes == 0 else []
    return played(scene.series) | {
        "promql_expr_test": [*pending, *(firing(scene, moment, fires=fires) for moment, fires in moments.items())],
        "alert_rule_test": [
            {"alertname": alert.name, "eval_time": f"{over(scene) - 1}m", "exp_alerts": [words(scene, alert)]}
        ],
    }


def at_its_worst(scene: Scene, series: Mapping[str, Values], *, fires: bool) -> Json:
    """Whether it fires when it would, given other series."""
    return played(series) | {"promql_expr_test": [firing(scene, over(scene) - 1, fires=fires)]}


def without_each(scene: Scene) -> list[Json]:
    return [
        at_its_worst(
            scene,
            {other: values for other, values in scene.series.items() if other != name},
            fires=name not in scene.needed,
        )
        for name in scene.series
    ]


def never(scene: Scene, series: Mapping[str, Values]) -> Json:
    """It is silent all the time, not only in the end."""
    until = over(scene) + AFTER
    ever = f'count(count_over_time(ALERTS{{alertname="{scene.alert}",alertstate="firing"}}[{until}m]))'
    return played(series) | {"promql_expr_test": [{"expr": ever, "eval_time": f"{until - 1}m", "exp_samples": []}]}


def with_gap(series: Mapping[str, Values], begin: int) -> Mapping[str, Values]:
    """All scrapes fail for some minutes: of kvgate, of vLLM and of everything else, as while Prometheus restarts."""
    return {
        name: [None if begin <= now < begin + GAP_MINUTES else value for now, value in enumerate(values)]
        for name, values in series.items()
    }


def going_on_well(scene: Scene) -> Mapping[str, Values]:
    """The series of the scene, if nothing had gone wrong: gauges stay, counters rise as in the first minutes."""
    whole = over(scene) + AFTER
    return {name: [good(values, now) for now in range(whole)] for name, values in scene.series.items()}


def good(values: Values, now: int) -> float | None:
    first, second = values[:2]
    return None if first is None or second is None else first + (second - first) * now


def with_gap_while_it_fires(scene: Scene) -> Json:
    gap = begins(scene) + 1
    moments = range(gap, min(gap + GAP_MINUTES + 4, over(scene)))
    return played(with_gap(scene.series, gap)) | {"promql_expr_test": [firing(scene, now) for now in moments]}


def test_every_alert_has_a_scene() -> None:
    assert {scene.alert for scene in SCENES} == set(BY_NAME)


def test_every_alert_that_wakes_somebody_has_a_look_alike_that_does_not() -> None:
    assert [scene.alert for scene in SCENES if BY_NAME[scene.alert].severity == "critical" and not scene.innocent] == []


def test_promtool_finds_nothing_wrong_with_the_rules(prometheus_assets: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule_groups()), encoding="utf-8")
    check_rules(prometheus_assets, tmp_path / "rules.yaml")


def test_every_alert_is_silent_fires_and_resolves(prometheus_assets: Path, tmp_path: Path) -> None:
    run_each(prometheus_assets, tmp_path, [(scene.alert, timeline(scene)) for scene in SCENES])


def test_every_alert_survives_the_lack_of_each_series(prometheus_assets: Path, tmp_path: Path) -> None:
    nothing = [(scene.alert, at_its_worst(scene, {}, fires=scene.fires_without_all)) for scene in SCENES]
    lacking = [(scene.alert, test) for scene in SCENES for test in without_each(scene)]
    run_each(prometheus_assets, tmp_path, [*lacking, *nothing])


def test_every_alert_leaves_the_innocent_alone(prometheus_assets: Path, tmp_path: Path) -> None:
    innocent = [(scene, {**scene.series, **each}) for scene in SCENES for each in scene.innocent]
    run_each(prometheus_assets, tmp_path, [(scene.alert, never(scene, series)) for scene, series in innocent])


def test_no_alert_ends_because_scrapes_fail_for_some_minutes(prometheus_assets: Path, tmp_path: Path) -> None:
    run_each(prometheus_assets, tmp_path, [(scene.alert, with_gap_while_it_fires(scene)) for scene in SCENES])


def test_no_alert_begins_because_scrapes_fail_for_some_minutes(prometheus_assets: Path, tmp_path: Path) -> None:
    """In good times, after which the series go on as they were."""
    tests = [(scene.alert, never(scene, with_gap(going_on_well(scene), 12))) for scene in SCENES]
    run_each(prometheus_assets, tmp_path, tests)


def with_gap_while_it_is_pending(scene: Scene) -> Json:
    """It begins anew after the gap at the latest, and then fires."""
    gap = scene.good_minutes + scene.settles_minutes + minutes(BY_NAME[scene.alert].holds_for) // 2
    late = GAP_MINUTES + minutes(BY_NAME[scene.alert].holds_for)
    return played(with_gap(scene.series, gap)) | {
        "promql_expr_test": [firing(scene, min(gap + late + 1, over(scene) - 1))]
    }


def test_scrapes_that_fail_for_some_minutes_delay_an_alert_and_do_not_prevent_it(
    prometheus_assets: Path, tmp_path: Path
) -> None:
    run_each(prometheus_assets, tmp_path, [(scene.alert, with_gap_while_it_is_pending(scene)) for scene in SCENES])


def in_cluster(name: str, series: Mapping[str, Values]) -> Mapping[str, Values]:
    return {each.replace("{", f'{{cluster="{name}",', 1): values for each, values in series.items()}


def in_one_of_two_clusters(scene: Scene) -> Json:
    """The same names in two clusters of one Prometheus: what happens in one is not said of the other, nor hidden by it."""
    series = {**in_cluster("bad", scene.series), **in_cluster("good", going_on_well(scene))}
    asked = f'count by (cluster) (ALERTS{{alertname="{scene.alert}",alertstate="firing"}})'
    samples = [{"labels": '{cluster="bad"}', "value": 1}]
    return played(series) | {
        "promql_expr_test": [{"expr": asked, "eval_time": f"{over(scene) - 1}m", "exp_samples": samples}]
    }


def test_two_clusters_in_one_prometheus_are_told_apart(prometheus_assets: Path, tmp_path: Path) -> None:
    run_each(prometheus_assets, tmp_path, [(scene.alert, in_one_of_two_clusters(scene)) for scene in SCENES])


def test_these_tests_would_notice_an_alert_that_is_missing(prometheus_assets: Path, tmp_path: Path) -> None:
    none = {"groups": [{"name": "kvgate", "rules": [{"record": "nothing", "expr": "vector(1)"}]}]}
    with pytest.raises(PrometheusError) as noticed:
        run(prometheus_assets, tmp_path, list(map(timeline, SCENES)), none)
    assert {name for name in BY_NAME if f"alertname: {name}," in str(noticed.value)} == set(BY_NAME)
