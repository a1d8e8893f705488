"""controlplane/prometheus.py against a trivial exporter, on both lines: what every test of metrics, rules and alerts stands on."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from contextlib import nullcontext as does_not_raise
from pathlib import Path

import pytest

from controlplane.programs import ControlPlaneError
from controlplane.prometheus import (
    Prometheus,
    PrometheusError,
    Sample,
    check_configuration,
    check_metrics,
    check_rules,
    run_rule_tests,
    serving,
)
from support.processes import command_lines
from support.prometheus import exporting, require_prometheus, scrape_configuration

EXPOSITION = """\
# HELP ballast_bytes What the ship carries.
# TYPE ballast_bytes gauge
ballast_bytes{hold="fore"} 2
ballast_bytes{hold="aft"} 3
"""
RULES = """\
groups:
  - name: ship
    rules:
      - {record: ship:ballast_bytes:sum, expr: sum(ballast_bytes)}
      - {alert: TooHeavy, expr: ballast_bytes > 2.5, labels: {severity: warning}}
"""
RULE_TESTS = """\
rule_files: [rules.yaml]
tests:
  - input_series: [{series: 'ballast_bytes{hold="aft"}', values: "4"}]
    alert_rule_test:
      - {alertname: TooHeavy, eval_time: 0m, exp_alerts: [{exp_labels: {hold: HOLD, severity: warning}}]}
"""


@pytest.fixture(scope="module")
def prometheus(prometheus_assets: Path) -> Iterator[Prometheus]:
    with (
        exporting(EXPOSITION) as port,
        serving(
            prometheus_assets, scrape_configuration(port, rule_files=("rules.yaml",)), files={"rules.yaml": RULES}
        ) as prometheus,
    ):
        prometheus.until("ship:ballast_bytes:sum")
        yield prometheus


def test_the_line_is_the_one_that_was_asked_for(prometheus: Prometheus, request: pytest.FixtureRequest) -> None:
    version = prometheus.get("status/buildinfo")["version"]
    assert f"Prometheus {version[0]}" in request.node.name


def test_an_instant_query_answers_samples_with_labels(prometheus: Prometheus) -> None:
    assert prometheus.query('sum by (hold) (ballast_bytes{hold="aft"})') == [Sample(labels={"hold": "aft"}, value=3.0)]


def test_a_query_of_another_time_is_empty(prometheus: Prometheus) -> None:
    assert prometheus.query("ballast_bytes", at_seconds=time.time() - 3600) == []


def test_a_scalar_is_a_sample_without_labels(prometheus: Prometheus) -> None:
    assert prometheus.query("scalar(sum(ballast_bytes)) * 2") == [Sample(labels={}, value=10.0)]


def test_a_range_query_answers_points(prometheus: Prometheus) -> None:
    now = time.time()
    (series,) = prometheus.query_range(
        "ship:ballast_bytes:sum", start_seconds=now - 60, end_seconds=now, step_seconds=1
    )
    assert {value for _, value in series.points} == {5.0}


def test_rules_alerts_and_targets_are_told(prometheus: Prometheus) -> None:
    assert [(rule["name"], rule["health"]) for rule in prometheus.rules()] == [
        ("ship:ballast_bytes:sum", "ok"),
        ("TooHeavy", "ok"),
    ]
    prometheus.until('ALERTS{alertname="TooHeavy"}')
    assert [(alert["labels"]["hold"], alert["state"]) for alert in prometheus.alerts()] == [("aft", "firing")]
    assert [target["health"] for target in prometheus.targets()] == ["up"]


def test_a_wrong_query_is_refused_in_its_own_words(prometheus: Prometheus) -> None:
    with pytest.raises(PrometheusError, match=r"query \{'query': 'sum\('\}: 400 .*parse error"):
        prometheus.query("sum(")


def test_waiting_in_vain_names_the_query_and_the_targets(prometheus: Prometheus) -> None:
    with pytest.raises(ControlPlaneError, match=r"not within 0\.1 s: absent_bytes finds something; targets: .*'up'"):
        prometheus.until("absent_bytes", within_seconds=0.1)


def test_an_exporter_shows_its_texts_in_turn(prometheus_assets: Path) -> None:
    with (
        exporting("turn 1\n", "turn 2\n", "turn 3\n") as port,
        serving(prometheus_assets, scrape_configuration(port)) as prometheus,
    ):
        prometheus.until("turn == 3")
        assert prometheus.query("count_over_time(turn[1m]) > 2")


def test_a_wrong_configuration_is_told_with_the_log_and_nothing_stays(prometheus_assets: Path) -> None:
    with (
        pytest.raises(ControlPlaneError, match=r"prometheus ended with status \d.*\n(.*\n)*.*scrape_konfigs") as raised,
        serving(prometheus_assets, "scrape_konfigs: []"),
    ):
        pytest.fail("it started")
    folder = raised.value.__notes__[0].split("the end of ")[1].split("/logs")[0]
    assert not Path(folder).exists()


def test_a_server_ends_with_its_block(prometheus_assets: Path) -> None:
    with serving(prometheus_assets, "") as prometheus:
        folder = str(prometheus.program.folder)
        assert command_lines(folder)
    assert not command_lines(folder)
    assert not Path(folder).exists()


# ── promtool ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def written(tmp_path: Path) -> Path:
    (tmp_path / "rules.yaml").write_text(RULES, encoding="utf-8")
    (tmp_path / "tests.yaml").write_text(RULE_TESTS.replace("HOLD", "aft"), encoding="utf-8")
    configuration = scrape_configuration(8000, rule_files=("rules.yaml",))
    (tmp_path / "prometheus.yml").write_text(configuration, encoding="utf-8")
    return tmp_path


def test_promtool_accepts_what_is_right(prometheus_assets: Path, written: Path) -> None:
    assert "2 rules found" in check_rules(prometheus_assets, written / "rules.yaml")
    assert "1 rule files found" in check_configuration(prometheus_assets, written / "prometheus.yml")
    assert "SUCCESS" in run_rule_tests(prometheus_assets, written / "tests.yaml")
    assert check_metrics(prometheus_assets, EXPOSITION) == ""


@pytest.mark.parametrize(
    ("file", "right", "wrong", "message"),
    [
        ("rules.yaml", "sum(ballast_bytes)", "sum(", "parse error"),
        ("rules.yaml", "- {alert: TooHeavy, expr: ballast_bytes > 2.5", "- {alert: X, exp: 1", "exp not found"),
        ("tests.yaml", "hold: aft", "hold: fore", "FAILED"),
        ("prometheus.yml", "static_configs", "static_konfigs", "static_konfigs"),
    ],
)
def test_promtool_says_what_is_wrong(
    prometheus_assets: Path, written: Path, file: str, right: str, wrong: str, message: str
) -> None:
    check = {"rules.yaml": check_rules, "tests.yaml": run_rule_tests, "prometheus.yml": check_configuration}[file]
    text = (written / file).read_text(encoding="utf-8")
    assert right in text
    (written / file).write_text(text.replace(right, wrong), encoding="utf-8")
    with pytest.raises(PrometheusError, match=message):
        check(prometheus_assets, written / file)


def test_rules_that_are_there_twice_are_an_error(prometheus_assets: Path, written: Path) -> None:
    twice = RULES + "      - {record: ship:ballast_bytes:sum, expr: sum(ballast_bytes)}\n"
    (written / "rules.yaml").write_text(twice, encoding="utf-8")
    with pytest.raises(PrometheusError, match="duplicate rule"):
        check_rules(prometheus_assets, written / "rules.yaml")


def test_a_metric_without_help_is_an_error(prometheus_assets: Path) -> None:
    with pytest.raises(PrometheusError, match="no help text"):
        check_metrics(prometheus_assets, "# TYPE ballast_bytes gauge\nballast_bytes 2\n")


@pytest.mark.parametrize(
    ("line", "outcome"),
    [("3", does_not_raise()), ("2", pytest.raises(PrometheusError, match="kubernetes_sd_configs not found"))],
)
def test_only_ours_is_built_with_discovery_in_kubernetes(
    pytestconfig: pytest.Config, tmp_path: Path, line: str, outcome: AbstractContextManager[object]
) -> None:
    configuration = tmp_path / "prometheus.yml"
    configuration.write_text("scrape_configs: [{job_name: pods, kubernetes_sd_configs: [{role: pod}]}]")
    with outcome:
        check_configuration(require_prometheus(pytestconfig, line), configuration)
