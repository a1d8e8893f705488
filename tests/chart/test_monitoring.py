"""What the chart gives to the operator of Prometheus and to Grafana: the very rules and dashboards that are tested elsewhere."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvgate.rendering.labels import OWNER_LABEL, labels
from mixin import DASHBOARDS
from mixin.alerts import ALERTS, rule_groups
from mixin.scraping import ENGINES, KEEP_USED, LIMITS, OTHER_ENGINES, OWNER_POD_LABEL, camel_case
from support.assets import require_assets
from support.chart import CHART, documents, helm, one, render

MEBIBYTE = 1 << 20
LABELS = "monitoring.labels.release=prometheus"
OBJECTS = {
    ("ServiceMonitor", "kvgate"),
    ("PodMonitor", "kvgate-vllm"),
    ("PodMonitor", "kvgate-vllm-others"),
    ("PrometheusRule", "kvgate"),
    *(("ConfigMap", f"{uid}-dashboard") for uid in DASHBOARDS),
}


@pytest.fixture(scope="module")
def binary(pytestconfig: pytest.Config) -> Path:
    return require_assets(pytestconfig, "helm") / "helm"


@pytest.fixture(scope="module")
def monitored(binary: Path) -> list[dict[str, Any]]:
    others = "monitoring.otherPodsMonitor.enabled=true"
    return documents(render(binary, "--set", f"monitoring.enabled=true,{others},{LABELS}"))


def test_a_label_that_we_have_too_is_the_users_and_stands_there_once(binary: Path) -> None:
    named = "monitoring.labels.app\\.kubernetes\\.io/name=other"
    text = render(binary, "--set", f"monitoring.enabled=true,{named}")
    found = one(documents(text), "ServiceMonitor", "kvgate")
    assert found["metadata"]["labels"]["app.kubernetes.io/name"] == "other"
    (part,) = (part for part in text.split("---\n") if "kind: ServiceMonitor" in part)
    assert part.partition("spec:")[0].count("app.kubernetes.io/name:") == 1


def test_by_default_nothing_needs_the_operator_of_prometheus(binary: Path) -> None:
    found = {(each["kind"], each["metadata"]["name"]) for each in documents(render(binary))}
    assert not found & OBJECTS


def test_every_object_has_the_labels_that_the_operator_looks_for(monitored: list[dict[str, Any]]) -> None:
    for kind, name in OBJECTS:
        assert one(monitored, kind, name)["metadata"]["labels"]["release"] == "prometheus"


def test_the_rules_are_those_that_are_tested(monitored: list[dict[str, Any]]) -> None:
    assert one(monitored, "PrometheusRule", "kvgate")["spec"] == rule_groups()


def alerts_with(binary: Path, folder: Path, alerts: dict[str, Any]) -> list[dict[str, Any]]:
    values = {"monitoring": {"enabled": True, "alerts": alerts}}
    (folder / "values.json").write_text(json.dumps(values), encoding="utf-8")
    found = documents(render(binary, "--values", folder / "values.json"))
    groups = one(found, "PrometheusRule", "kvgate")["spec"]["groups"]
    assert all(group["rules"] for group in groups), "an empty group is invalid"
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def test_every_alert_has_the_severity_the_time_and_the_threshold_of_its_values(binary: Path, tmp_path: Path) -> None:
    changed = {
        alert.key: {"severity": "page", "for": "42m", **({} if alert.threshold is None else {"threshold": 0.75})}
        for alert in ALERTS
    }
    rules = {rule["alert"]: rule for rule in alerts_with(binary, tmp_path, changed)}
    assert set(rules) == {alert.name for alert in ALERTS}
    for alert in ALERTS:
        rule = rules[alert.name]
        assert (rule["labels"], rule["for"]) == ({"severity": "page"}, "42m")
        assert rule["expr"] == alert.query_with("0.75")


@pytest.mark.parametrize("kept", [None, *(alert.key for alert in ALERTS)])
def test_every_alert_can_be_switched_off(binary: Path, tmp_path: Path, kept: str | None) -> None:
    others_off = {alert.key: {"enabled": alert.key == kept} for alert in ALERTS}
    found = [rule["alert"] for rule in alerts_with(binary, tmp_path, others_off)]
    assert found == [alert.name for alert in ALERTS if alert.key == kept]


def test_without_an_address_of_its_own_an_alert_leads_to_the_webhook_of_its_release(binary: Path) -> None:
    found = documents(
        helm(binary, "template", "budget", CHART, "--namespace", "ops", "--set", "monitoring.enabled=true")
    )
    service = one(found, "Service", "budget-kvgate-webhook-metrics")
    (port,) = service["spec"]["ports"]
    there = f"http://{service['metadata']['name']}.{service['metadata']['namespace']}.svc:{port['port']}/runbooks"
    assert one(found, "PrometheusRule", "budget-kvgate")["spec"] == rule_groups(there)


def test_runbooks_are_where_the_values_say(binary: Path) -> None:
    there = "https://runbooks.example.org"
    found = documents(render(binary, "--set", f"monitoring.enabled=true,monitoring.prometheusRule.runbooks={there}"))
    assert one(found, "PrometheusRule", "kvgate")["spec"] == rule_groups(there)
    for uid in DASHBOARDS:
        board = json.loads(one(found, "ConfigMap", f"{uid}-dashboard")["data"][f"{uid}.json"])
        (runbooks,) = (variable for variable in board["templating"]["list"] if variable["name"] == "runbooks")
        assert runbooks["query"] == there


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_a_dashboard_is_handed_over_as_it_is(monitored: list[dict[str, Any]], uid: str) -> None:
    config_map = one(monitored, "ConfigMap", f"{uid}-dashboard")
    text = (CHART / "dashboards" / f"{uid}.json").read_text(encoding="utf-8")
    assert config_map["data"] == {f"{uid}.json": text.strip()}
    assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert len(text.encode()) < MEBIBYTE


def test_the_pods_of_inferencedeployments_are_found_by_the_label_that_they_are_rendered_with(
    monitored: list[dict[str, Any]],
) -> None:
    assert OWNER_POD_LABEL == OWNER_LABEL
    assert OWNER_POD_LABEL in labels("chat")
    ours, others = (one(monitored, "PodMonitor", name)["spec"] for name in ("kvgate-vllm", "kvgate-vllm-others"))
    assert ours["selector"]["matchExpressions"] == [{"key": OWNER_LABEL, "operator": "Exists"}]
    assert others["selector"]["matchExpressions"] == [{"key": OWNER_LABEL, "operator": "DoesNotExist"}]


@pytest.mark.parametrize(("name", "job"), [("kvgate-vllm", ENGINES), ("kvgate-vllm-others", OTHER_ENGINES)])
def test_the_relabelings_are_those_of_the_plain_configuration(
    monitored: list[dict[str, Any]], name: str, job: Any
) -> None:
    (endpoint,) = one(monitored, "PodMonitor", name)["spec"]["podMetricsEndpoints"]
    assert endpoint["relabelings"] == [rule.camel_case() for rule in job.relabelings]
    assert endpoint["metricRelabelings"] == [rule.camel_case() for rule in job.metric_relabelings]


@pytest.mark.parametrize("name", ["kvgate-vllm", "kvgate-vllm-others"])
def test_the_bounds_of_what_a_pod_may_serve_are_those_of_the_plain_configuration(
    monitored: list[dict[str, Any]], name: str
) -> None:
    spec = one(monitored, "PodMonitor", name)["spec"]
    (endpoint,) = spec["podMetricsEndpoints"]
    bounds = {name: value for name, value in LIMITS.items() if name != "honor_timestamps"}
    assert {camel_case(name): bound for name, bound in bounds.items()}.items() <= spec.items()
    assert endpoint["honorTimestamps"] is LIMITS["honor_timestamps"] is False


def test_only_what_rules_and_dashboards_read_of_vllm_is_stored_where_that_is_wanted(binary: Path) -> None:
    values = "monitoring.enabled=true,monitoring.otherPodsMonitor.enabled=true,monitoring.engineMetrics=used"
    found = documents(render(binary, "--set", values))
    for name, job in (("kvgate-vllm", ENGINES), ("kvgate-vllm-others", OTHER_ENGINES)):
        (endpoint,) = one(found, "PodMonitor", name)["spec"]["podMetricsEndpoints"]
        assert endpoint["metricRelabelings"] == [rule.camel_case() for rule in (*job.metric_relabelings, KEEP_USED)]


def test_where_the_controller_serves_some_namespaces_engines_are_looked_for_there(binary: Path) -> None:
    found = documents(render(binary, "--set", "monitoring.enabled=true,watchNamespaces={team-a}"))
    assert one(found, "PodMonitor", "kvgate-vllm")["spec"]["namespaceSelector"] == {"matchNames": ["team-a"]}
