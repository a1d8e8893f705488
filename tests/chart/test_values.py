"""The chart's values: each is used, documented and checked, and a wrong one is refused with what to do."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.assets import require_assets
from support.chart import CHART, HelmError, render

VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
PEM = "-----BEGIN CERTIFICATE-----"
PROVIDED = {"mode": "provided", "secretName": "tls", "caBundle": PEM}
HUB = {"models": {"resolve": "hub"}}
MONITORED = {"monitoring": {"enabled": True}}
PUSHED: dict[str, Any] = {"monitoring": {"otlp": {"endpoint": "http://collector:4318"}}}
PARTS = {
    "serviceMonitor": True,
    "podMonitor": True,
    "otherPodsMonitor": False,
    "prometheusRule": True,
    "dashboards": True,
}
"""What monitoring consists of, and whether it is on by default."""
ALERTS_PATH = "monitoring.alerts."

ANOTHER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "image.repository": ({}, {"image": {"repository": "other/kvgate"}}),
    "image.tag": ({}, {"image": {"tag": "other"}}),
    "imagePullSecrets": ({}, {"imagePullSecrets": ["pull"]}),
    "nodeSelector": ({}, {"nodeSelector": {"pool": "system"}}),
    "tolerations": ({}, {"tolerations": [{"operator": "Exists"}]}),
    "podAnnotations": ({}, {"podAnnotations": {"prometheus.io/scrape": "true"}}),
    "watchNamespaces": ({}, {"watchNamespaces": ["team-a"]}),
    "admission.mode": ({}, {"admission": {"mode": "Audit"}}),
    "admission.maxSkipDays": ({}, {"admission": {"maxSkipDays": 7}}),
    "crds.enabled": ({}, {"crds": {"enabled": False}}),
    "crds.keep": ({}, {"crds": {"keep": False}}),
    "crds.userRoles": ({}, {"crds": {"userRoles": False}}),
    "authors.mustCreatePods": ({}, {"authors": {"mustCreatePods": False}}),
    "authors.mustReadSecrets": ({}, {"authors": {"mustReadSecrets": True}}),
    "pods.allowHostPath": ({}, {"pods": {"allowHostPath": True}}),
    "pods.allowedServiceAccounts": ({}, {"pods": {"allowedServiceAccounts": ["weights-*"]}}),
    "pods.allowedInitImages": ({}, {"pods": {"allowedInitImages": ["registry.example/team/*"]}}),
    "pods.allowedSidecarImages": ({}, {"pods": {"allowedSidecarImages": ["registry.example/team/*"]}}),
    "calibration.images": ({}, {"calibration": {"images": ["registry.example/team/*"]}}),
    "calibration.readNodes": ({}, {"calibration": {"readNodes": True}}),
    "nodes.watch": ({}, {"nodes": {"watch": False}}),
    "calibration.scope": ({}, {"calibration": {"scope": "Cluster"}}),
    "models.resolve": ({}, HUB),
    "models.resolveSeconds": (HUB, {"models": {"resolve": "hub", "resolveSeconds": 30}}),
    "models.endpoint": (HUB, {"models": {"resolve": "hub", "endpoint": "https://hub.example.org"}}),
    "models.tokenSecret.name": (HUB, {"models": {"resolve": "hub", "tokenSecret": {"name": "hub-token"}}}),
    "models.tokenSecret.key": (
        {"models": {"resolve": "hub", "tokenSecret": {"name": "hub-token"}}},
        {"models": {"resolve": "hub", "tokenSecret": {"name": "hub-token", "key": "HF_TOKEN"}}},
    ),
    "models.egress.enabled": (HUB, {"models": {"resolve": "hub", "egress": {"enabled": False}}}),
    "models.egress.cidrs": (HUB, {"models": {"resolve": "hub", "egress": {"cidrs": ["10.7.0.0/16"]}}}),
    "models.egress.ports": (HUB, {"models": {"resolve": "hub", "egress": {"ports": [443, 8443]}}}),
    "models.egress.apiServer.cidrs": (
        HUB,
        {"models": {"resolve": "hub", "egress": {"apiServer": {"cidrs": ["192.0.2.7/32"]}}}},
    ),
    "models.egress.apiServer.ports": (HUB, {"models": {"resolve": "hub", "egress": {"apiServer": {"ports": [16443]}}}}),
    "controller.leaseNamespace": ({}, {"controller": {"leaseNamespace": "leases"}}),
    "controller.maxReplacing": ({}, {"controller": {"maxReplacing": 9}}),
    "controller.passOn.labels": ({}, {"controller": {"passOn": {"labels": ["team"]}}}),
    "controller.passOn.annotations": ({}, {"controller": {"passOn": {"annotations": ["example.com/*"]}}}),
    "controller.resources": ({}, {"controller": {"resources": {"requests": {"cpu": 2}}}}),
    "monitoring.enabled": ({}, MONITORED),
    "monitoring.scrapers": ({}, {"monitoring": {"scrapers": [{"podSelector": {}}]}}),
    "monitoring.labels": (MONITORED, {"monitoring": {"enabled": True, "labels": {"release": "prometheus"}}}),
    "monitoring.interval": (MONITORED, {"monitoring": {"enabled": True, "interval": "15s"}}),
    "monitoring.engineMetrics": (MONITORED, {"monitoring": {"enabled": True, "engineMetrics": "used"}}),
    **{
        f"monitoring.{part}.enabled": (MONITORED, {"monitoring": {"enabled": True, part: {"enabled": not default}}})
        for part, default in PARTS.items()
    },
    "monitoring.prometheusRule.runbooks": (
        MONITORED,
        {"monitoring": {"enabled": True, "prometheusRule": {"runbooks": "https://example.org/runbooks"}}},
    ),
    "monitoring.podMonitor.inEachNamespace": (
        {**MONITORED, "watchNamespaces": ["team-a"]},
        {"watchNamespaces": ["team-a"], "monitoring": {"enabled": True, "podMonitor": {"inEachNamespace": True}}},
    ),
    **{
        f"monitoring.dashboards.{path}": (MONITORED, {"monitoring": {"enabled": True, "dashboards": dashboards}})
        for path, dashboards in {
            "folder": {"folder": "other"},
            "labels.grafana_dashboard": {"labels": {"grafana_dashboard": "yes"}},
            "grafanaOperator.enabled": {"grafanaOperator": {"enabled": True}},
            "openshiftConsole": {"openshiftConsole": True},
        }.items()
    },
    "monitoring.dashboards.grafanaOperator.instanceSelector.dashboards": (
        {"monitoring": {"enabled": True, "dashboards": {"grafanaOperator": {"enabled": True}}}},
        {
            "monitoring": {
                "enabled": True,
                "dashboards": {"grafanaOperator": {"enabled": True, "instanceSelector": {"dashboards": "other"}}},
            }
        },
    ),
    "monitoring.otlp.endpoint": ({}, PUSHED),
    **{
        f"monitoring.otlp.{path}": (PUSHED, {"monitoring": {"otlp": {**PUSHED["monitoring"]["otlp"], **otlp}}})
        for path, otlp in {
            "intervalSeconds": {"intervalSeconds": 15},
            "headersSecret.name": {"headersSecret": {"name": "receiver"}},
            "resourceAttributes": {"resourceAttributes": {"k8s.cluster.name": "eu-1"}},
            "egress.cidrs": {"egress": {"cidrs": ["10.7.0.0/16"]}},
            "egress.ports": {"egress": {"ports": [14318]}},
        }.items()
    },
    "monitoring.otlp.headersSecret.key": (
        {"monitoring": {"otlp": {**PUSHED["monitoring"]["otlp"], "headersSecret": {"name": "receiver"}}}},
        {"monitoring": {"otlp": {**PUSHED["monitoring"]["otlp"], "headersSecret": {"name": "receiver", "key": "k"}}}},
    ),
    "priorityClassName": ({}, {"priorityClassName": "system-cluster-critical"}),
    "controller.replicas": ({}, {"controller": {"replicas": 1}}),
    "controller.boundByPolicy": ({}, {"controller": {"boundByPolicy": False}}),
    "data.configMap": ({}, {"data": {"configMap": "kvgate-data"}}),
    "webhook.replicas": ({}, {"webhook": {"replicas": 3}}),
    "webhook.port": ({}, {"webhook": {"port": 10250}}),
    "webhook.workers": ({}, {"webhook": {"workers": 4}}),
    "webhook.clientCA.configMap": ({}, {"webhook": {"clientCA": {"configMap": "api-server-ca"}}}),
    "webhook.clientCA.names": (
        {"webhook": {"clientCA": {"configMap": "api-server-ca"}}},
        {"webhook": {"clientCA": {"configMap": "api-server-ca", "names": ["kube-apiserver"]}}},
    ),
    "webhook.certs.mode": ({}, {"webhook": {"certs": PROVIDED}}),
    "webhook.certs.secretName": (
        {"webhook": {"certs": PROVIDED}},
        {"webhook": {"certs": {**PROVIDED, "secretName": "other"}}},
    ),
    "webhook.certs.caBundle": (
        {"webhook": {"certs": PROVIDED}},
        {"webhook": {"certs": {**PROVIDED, "caBundle": f"{PEM} other"}}},
    ),
    "webhook.resources": ({}, {"webhook": {"resources": {"requests": {"cpu": 2}}}}),
}
"""For each value: values that render, and the same with this one changed."""


@pytest.fixture(scope="module")
def binary(pytestconfig: pytest.Config) -> Path:
    return require_assets(pytestconfig, "helm") / "helm"


def leaves(values: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that a user may set, by its path; what is empty, `resources` or an alert is one value."""
    for key, value in values.items():
        if isinstance(value, dict) and value and key != "resources" and path != ALERTS_PATH:
            yield from leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def rendered(binary: Path, folder: Path, values: dict[str, Any]) -> str:
    (folder / "values.json").write_text(json.dumps(values), encoding="utf-8")
    return render(binary, "--values", folder / "values.json")


def test_the_table_above_has_every_value() -> None:
    """But for the alerts, of which tests/chart/test_monitoring.py changes each."""
    assert set(ANOTHER) == {path for path, _ in leaves(VALUES) if not path.startswith(ALERTS_PATH)}


@pytest.mark.parametrize("path", ANOTHER)
def test_a_value_changes_what_is_rendered(binary: Path, tmp_path: Path, path: str) -> None:
    before, after = ANOTHER[path]
    assert rendered(binary, tmp_path, before) != rendered(binary, tmp_path, after)


def test_the_readme_names_every_value_with_its_default() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", (CHART / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    documented = {path: yaml.safe_load(default) for path, default in rows}
    assert documented == {path: default for path, default in leaves(VALUES) if not path.startswith(ALERTS_PATH)}


def test_the_readme_leads_to_the_table_of_alerts_which_names_every_value_of_them() -> None:
    assert "| `monitoring.alerts.*` |" in (CHART / "README.md").read_text(encoding="utf-8")
    table = (CHART.parents[1] / "docs" / "reference" / "alerts.md").read_text(encoding="utf-8")
    assert [key for key in VALUES["monitoring"]["alerts"] if f"| `{key}` |" not in table] == []


def schema_leaves(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    for key, child in schema["properties"].items():
        if "properties" in child:
            yield from schema_leaves(child, f"{path}{key}.")
        else:
            yield f"{path}{key}"


def test_the_schema_knows_every_value_and_helms_own_and_no_other() -> None:
    assert sorted(schema_leaves(SCHEMA)) == sorted(["global", *(path for path, _ in leaves(VALUES))])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replicas": 2}, ["additional properties 'replicas' not allowed"]),
        ({"webhook": {"certs": {"mode": "self"}}}, ["/webhook/certs/mode", "'auto', 'certManager', 'provided'"]),
        ({"webhook": {"port": 8080}}, ["/webhook/port"]),
        ({"webhook": {"replicas": 0}}, ["/webhook/replicas", "minimum"]),
        ({"webhook": {"clientCA": {"names": ["kube-apiserver"]}}}, ["/webhook/clientCA"]),
        ({"watchNamespaces": ["Team"]}, ["/watchNamespaces/0", "'Team' does not match"]),
        ({"models": {"resolve": "on"}}, ["/models/resolve", "'hub', 'off'"]),
        ({"models": {"resolveSeconds": 0}}, ["/models/resolveSeconds", "minimum"]),
        ({"models": {"endpoint": "hub.example.org"}}, ["/models/endpoint", "does not match"]),
        ({"models": {"endpoint": "https://user:password@hub.example.org"}}, ["/models/endpoint", "does not match"]),
        ({"models": {"egress": {"cidrs": ["huggingface.co"]}}}, ["/models/egress/cidrs/0", "does not match"]),
        ({"calibration": {"scope": "All"}}, ["/calibration/scope", "'Namespace', 'Cluster'"]),
        ({"pods": {"allowedInitImages": ["busybox:1"]}}, ["/pods/allowedInitImages/0", "does not match"]),
        ({"pods": {"allowedImages": []}}, ["/pods", "'allowedImages' not allowed"]),
        ({"calibration": {"images": ["vllm/vllm-openai:v1"]}}, ["/calibration/images/0", "does not match"]),
        ({"monitoring": {"scrapers": [{}]}}, ["/monitoring/scrapers/0", "minProperties"]),
        ({"monitoring": {"scrapers": [{"namespace": "x"}]}}, ["/monitoring/scrapers/0", "'namespace' not allowed"]),
        ({"monitoring": {"interval": "30"}}, ["/monitoring/interval", "'30' does not match"]),
        ({"monitoring": {"otlp": {"endpoint": "collector:4318"}}}, ["/monitoring/otlp/endpoint", "does not match"]),
        ({"monitoring": {"otlp": {"endpoint": "http://u:p@collector"}}}, ["/monitoring/otlp/endpoint"]),
        ({"monitoring": {"otlp": {"resourceAttributes": {"a": "b,c"}}}}, ["/monitoring/otlp/resourceAttributes/a"]),
        ({"monitoring": {"dashboards": {"grafanaOperator": {"instanceSelector": "x"}}}}, ["/instanceSelector"]),
        (
            {"monitoring": {"podMonitor": {"inEachNamespace": True}}},
            ["monitoring.podMonitor.inEachNamespace is true, but watchNamespaces is empty: name the namespaces"],
        ),
        (
            {"monitoring": {"alerts": {"engineFul": {"enabled": False}}}},
            ["additional properties 'engineFul' not allowed"],
        ),
        ({"monitoring": {"alerts": {"engineFull": {"for": "10 minutes"}}}}, ["/monitoring/alerts/engineFull/for"]),
        ({"monitoring": {"alerts": {"engineFull": {"threshold": "95%"}}}}, ["/monitoring/alerts/engineFull/threshold"]),
        ({"monitoring": {"alerts": {"engineStuck": {"threshold": 1}}}}, ["/monitoring/alerts/engineStuck"]),
        ({"monitoring": {"prometheusRule": {"runbooks": "docs/runbooks"}}}, ["/monitoring/prometheusRule/runbooks"]),
        ({"monitoring": {"prometheusRule": {"runbooks": "https://a/"}}}, ["/monitoring/prometheusRule/runbooks"]),
        ({"image": {"tag": "sha256:12"}}, ["/image/tag", "'sha256:12' does not match"]),
        (
            {"webhook": {"certs": {"mode": "provided"}}},
            [
                "webhook.certs.secretName is empty: mode provided needs the name of a Secret of type kubernetes.io/tls",
                "webhook.certs.caBundle is empty: mode provided needs the CA's certificate as PEM text",
                "pass --set-file webhook.certs.caBundle=ca.crt",
            ],
        ),
        (
            {"webhook": {"certs": {**PROVIDED, "caBundle": "LS0tLS1CRUdJTg=="}}},
            ["webhook.certs.caBundle holds no PEM certificate"],
        ),
        (
            {"webhook": {"certs": {**PROVIDED, "mode": "certManager"}}},
            [
                "webhook.certs.secretName is set, but mode certManager does not use it",
                "webhook.certs.caBundle is set, but mode certManager does not use it",
            ],
        ),
    ],
)
def test_wrong_values_are_refused_with_what_is_wrong(
    binary: Path, tmp_path: Path, values: dict[str, Any], said: list[str]
) -> None:
    with pytest.raises(HelmError) as refused:
        rendered(binary, tmp_path, values)
    for words in said:
        assert words in str(refused.value)
