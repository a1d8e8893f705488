"""What people read of an alert: the words, the severity, the runbook."""

import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from prometheus_client import CollectorRegistry

from generate.reference import HEAD
from kvgate import DOCS_URL
from kvgate.metrics.exporter import endpoint_app
from kvgate.metrics.listener import listen
from kvgate.metrics.registry import METRICS
from mixin.alert import SEVERITIES, THRESHOLD, Alert
from mixin.alerts import ALERTS, MOST_RULES, RUNBOOKS, grouped, rule_groups
from mixin.queries import RECORDING_RULES

ROOT = Path(__file__).resolve().parents[3]
SECTIONS = ["What it means", "What to look at", "What to do"]
FOLDER = "docs/runbooks"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MOST_WORDS = 150
"""Of a whole runbook: somebody reads it at night."""
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
    assert alert.when


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_has_a_runbook_with_what_it_means_what_to_look_at_and_what_to_do(alert: Alert) -> None:
    text = runbook(alert)
    assert text.removeprefix(f"{HEAD}\n").startswith(f"# {alert.name}\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    means, look, do = re.split(r"^## .*$", text, flags=re.MULTILINE)[1:]
    assert means.strip()
    assert "irst" in look, "it says what to look at first"
    assert len(BLOCK.findall(look)) == 1, "one command or query shows the cause"
    assert [language for language, _ in BLOCK.findall(do)] == ["sh"], "one command ends it"
    assert all(len(block.splitlines()) == 1 for _, block in BLOCK.findall(text))
    assert len(text.split()) <= MOST_WORDS
    assert bool(alert.cause) == bool(alert.remedy) == text.startswith(HEAD)


def test_there_is_no_runbook_without_an_alert() -> None:
    assert {path.stem for path in (ROOT / FOLDER).glob("*")} == {alert.name for alert in ALERTS}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_a_runbook_names_only_metrics_that_exist(alert: Alert) -> None:
    known = {metric.name for metric in METRICS} | {rule.name for rule in RECORDING_RULES}
    named = {name for name in re.findall(r"\bkvgate_[a-z_]+\b", runbook(alert)) if not name.endswith(ENDINGS)}
    assert named <= known


@pytest.mark.parametrize("base", [RUNBOOKS, "https://example.org/runbooks"])
def test_every_alert_leads_to_its_runbook(base: str) -> None:
    for rule in alerting(base):
        address = rule["annotations"]["runbook_url"]
        assert address.startswith(f"{base}/")
        assert (ROOT / address.replace(base, FOLDER)).is_file(), address


def alerting(base: str = RUNBOOKS) -> list[dict[str, Any]]:
    return [rule for group in rule_groups(base)["groups"] for rule in group["rules"] if "alert" in rule]


def test_no_group_is_larger_than_mimir_and_grafana_cloud_take_it() -> None:
    groups = rule_groups()["groups"]
    assert max(len(group["rules"]) for group in groups) <= MOST_RULES
    assert len({group["name"] for group in groups}) == len(groups) <= 70
    assert ["record" in group["rules"][0] for group in groups] == sorted(
        ("record" in group["rules"][0] for group in groups), reverse=True
    )


def test_a_large_room_is_cut() -> None:
    assert [(name, len(rules)) for name, rules in grouped({"a": range(41), "b": range(20), "c": ()})] == [
        ("a", 20), ("a-2", 20), ("a-3", 1), ("b", 20),
    ]  # fmt: skip


def test_an_address_of_a_runbook_is_absolute() -> None:
    """A relative link in a message of Alertmanager leads nowhere."""
    assert RUNBOOKS.startswith(f"{DOCS_URL}/" if DOCS_URL else "http://")
    for rule in alerting():
        assert rule["annotations"]["runbook_url"].startswith(("https://", "http://"))


def test_the_chart_gives_the_same_address_where_docs_are_published() -> None:
    values = yaml.safe_load((ROOT / "charts/kvgate/values.yaml").read_text(encoding="utf-8"))
    assert values["monitoring"]["prometheusRule"]["runbooks"] == (RUNBOOKS if DOCS_URL else "")


async def test_the_port_for_metrics_answers_with_every_runbook() -> None:
    app = endpoint_app(CollectorRegistry(), livez=lambda: (True, ""), readyz=lambda: (True, ""))
    runner = await listen(app, "127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as client:
            for alert in ALERTS:
                async with client.get(f"/runbooks/{alert.name}.md") as response:
                    assert (response.status, response.content_type) == (200, "text/plain")
                    assert await response.text() == runbook(alert)
            for missing in ("/runbooks/", "/runbooks/KvgateNothing.md", "/runbooks/..%2f..%2fREADME.md"):
                async with client.get(missing) as response:
                    assert response.status == 404
    finally:
        await runner.cleanup()


def test_prometheus_remembers_what_lasts_and_the_rest_begins_again_before_alertmanager_forgets() -> None:
    """`rules.alert.for-grace-period` is ten minutes; Alertmanager ends what nobody repeats after four."""
    for alert in ALERTS:
        assert not 3 < minutes(alert.holds_for) < 10, alert.name
        assert minutes(alert.keeps_firing_for) >= 5, alert.name


def minutes(duration: str) -> int:
    return int(duration[:-1]) * {"m": 1, "h": 60}[duration[-1]]


def test_every_rule_keeps_the_cluster() -> None:
    """A rule that puts series together without it would mix two clusters in one Prometheus."""
    queries = [(alert.name, alert.expression) for alert in ALERTS]
    queries += [(rule.name, rule.expression) for rule in RECORDING_RULES]
    for name, query in queries:
        groups = re.findall(r"\b(?:by|on) \(([a-z_, ]*)\)", query)
        assert [labels for labels in groups if labels and not labels.startswith("cluster")] == [], name


def test_a_threshold_is_a_number_of_the_query_with_a_meaning() -> None:
    for alert in ALERTS:
        assert (alert.threshold is None) == (THRESHOLD not in alert.query) == (not alert.unit), alert.name
        assert THRESHOLD not in alert.expression


def test_the_chart_has_a_switch_and_the_defaults_of_every_alert() -> None:
    values = yaml.safe_load((ROOT / "charts/kvgate/values.yaml").read_text(encoding="utf-8"))
    assert values["monitoring"]["alerts"] == {
        alert.key: {
            "enabled": True,
            "severity": alert.severity,
            "for": alert.holds_for,
            **({} if alert.threshold is None else {"threshold": alert.threshold}),
        }
        for alert in ALERTS
    }


def test_a_recorded_name_says_level_metric_and_operation() -> None:
    for rule in RECORDING_RULES:
        assert re.fullmatch(r"kvgate:[a-z_]+:[a-z0-9_]+", rule.name)
