"""What people read of an alert: the words, the severity, the runbook."""

import re
from pathlib import Path

import pytest
import yaml

from kvgate import DOCS_URL
from kvgate.metrics.registry import METRICS
from kvgate.monitoring.alert import SEVERITIES, Alert
from kvgate.monitoring.alerts import ALERTS, RUNBOOKS, rule_groups
from kvgate.monitoring.queries import RECORDING_RULES

ROOT = Path(__file__).resolve().parents[3]
SECTIONS = ["What it means", "What to look at", "What to do"]
FOLDER = "docs/runbooks"
ENDINGS = ("_bucket", "_sum", "_count")


def runbook(alert: Alert) -> str:
    return (ROOT / FOLDER / f"{alert.name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_says_what_happened_and_how_bad_it_is(alert: Alert) -> None:
    assert re.fullmatch(r"Kvgate[A-Z][A-Za-z]+", alert.name)
    assert alert.severity in SEVERITIES
    assert re.fullmatch(r"\d+[mh]", alert.holds_for)
    assert not alert.summary.endswith("."), "a title"
    assert "$value" not in alert.summary, "a title that changes makes a new notification each time"
    assert alert.description.endswith(".")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_has_a_runbook_with_what_it_means_what_to_look_at_and_what_to_do(alert: Alert) -> None:
    text = runbook(alert)
    assert text.startswith(f"# {alert.name}\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert all(part.strip() for part in re.split(r"^## .*$", text, flags=re.MULTILINE))


def test_there_is_no_runbook_without_an_alert() -> None:
    assert {path.stem for path in (ROOT / FOLDER).glob("*")} == {alert.name for alert in ALERTS}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_a_runbook_names_only_metrics_that_exist(alert: Alert) -> None:
    known = {metric.name for metric in METRICS} | {rule.name for rule in RECORDING_RULES}
    named = {name for name in re.findall(r"\bkvgate_[a-z_]+\b", runbook(alert)) if not name.endswith(ENDINGS)}
    assert named <= known


def test_every_alert_is_shipped_with_the_place_of_its_runbook() -> None:
    (group,) = rule_groups("https://example.org")["groups"]
    places = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in group["rules"] if "alert" in rule}
    assert places == {alert.name: f"https://example.org/{alert.name}.md" for alert in ALERTS}


def test_all_places_of_the_runbooks_follow_from_one_constant() -> None:
    assert f"{DOCS_URL or 'docs'}/runbooks" == RUNBOOKS
    values = yaml.safe_load((ROOT / "charts/kvgate/values.yaml").read_text(encoding="utf-8"))
    assert values["monitoring"]["prometheusRule"]["runbooks"] == RUNBOOKS
    (group,) = rule_groups()["groups"]
    for place in (rule["annotations"]["runbook_url"] for rule in group["rules"] if "alert" in rule):
        page = ROOT / "docs" / place.removeprefix(DOCS_URL or "docs").lstrip("/")
        assert page.is_file(), place


def test_a_recorded_name_says_level_metric_and_operation() -> None:
    for rule in RECORDING_RULES:
        assert re.fullmatch(r"kvgate:[a-z_]+:[a-z0-9_]+", rule.name)
