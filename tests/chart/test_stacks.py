"""docs/stacks: every values file renders, every object is as its kind says, and each does what its page promises."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart.golden import CASES, golden_file
from controlplane.kubeconform import TEMPLATE, kubeconform
from controlplane.prometheus import check_configuration
from kvgate.api.template import RESERVED_KEY
from kvgate.metrics.registry import METRICS
from kvgate.rendering.labels import OWNER_LABEL
from kvgate.rendering.workload import CONTAINER
from mixin import DASHBOARDS
from support.assets import require_assets
from support.chart import NAMESPACE, ROOT, documents, one, render
from support.crd_schemas import write_schemas
from support.prometheus import require_prometheus

STACKS = ROOT / "docs" / "stacks"
VALUES = sorted((STACKS / "values").glob("*.yaml"))
DOORS = ("controller", "webhook")


@pytest.fixture(scope="module")
def binary(pytestconfig: pytest.Config) -> Path:
    return require_assets(pytestconfig, "helm") / "helm"


@pytest.fixture(scope="module")
def command(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """kubeconform with the kinds of other projects, to which no kind is unknown."""
    folder = write_schemas(tmp_path_factory.mktemp("kinds"))
    known = [word for word in kubeconform(require_assets(pytestconfig)) if word != "-ignore-missing-schemas"]
    return [*known, "-schema-location", f"{folder}/{TEMPLATE}", "-summary"]


def rendered(binary: Path, stack: str) -> list[dict[str, Any]]:
    return documents(render(binary, "--values", STACKS / "values" / f"{stack}.yaml"))


def pod(found: list[dict[str, Any]], door: str) -> dict[str, Any]:
    template = one(found, "Deployment", f"kvgate-{door}")["spec"]["template"]
    assert isinstance(template, dict)
    return template


# ── schemas ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.cluster
@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_every_object_of_a_stack_is_as_its_schema_says(binary: Path, command: list[str], values: Path) -> None:
    text = render(binary, "--values", values)
    checked = subprocess.run([*command, "-"], input=text, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    assert "Skipped: 0" in checked.stdout


@pytest.mark.cluster
@pytest.mark.parametrize("case", CASES)
def test_so_are_those_of_the_other_cases(command: list[str], case: str) -> None:
    checked = subprocess.run([*command, golden_file(case)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.cluster
def test_the_collector_of_the_operator_is_as_its_schema_says(command: list[str]) -> None:
    checked = subprocess.run([*command, STACKS / "collector-operator.yaml"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("stack", "right", "wrong"),
    [
        ("openshift", "podMetricsEndpoints:", "podMetricsEndpoint:"),
        ("kube-prometheus-stack", "honorLabels: true", "honorLabels: yes-please"),
        ("kube-prometheus-stack", "keep_firing_for:", "keepFiringFor:"),
        ("grafana-operator", "instanceSelector:", "instanceLabels:"),
        ("kube-prometheus-stack", "action: keep", "action: retain"),
    ],
)
def test_a_mistake_in_them_is_refused(binary: Path, command: list[str], stack: str, right: str, wrong: str) -> None:
    more = ["--set", "monitoring.otherPodsMonitor.enabled=true"]
    text = render(binary, "--values", STACKS / "values" / f"{stack}.yaml", *more)
    assert right in text
    checked = subprocess.run([*command, "-"], input=text.replace(right, wrong), capture_output=True, text=True)
    assert (checked.returncode, " is invalid: " in checked.stdout) == (1, True)


# ── the pages ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_values_file_is_named_by_the_page_that_it_names() -> None:
    for path in VALUES:
        (page,) = re.findall(r"docs/stacks/([a-z-]+\.md)", path.read_text(encoding="utf-8"))
        assert f"values/{path.name}" in (STACKS / page).read_text(encoding="utf-8"), path


def test_every_page_is_in_the_table() -> None:
    table = (STACKS / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in STACKS.glob("*.md") if f"({page.name})" not in table] == ["README.md"]


# ── annotations ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("door", DOORS)
def test_annotations_of_prometheus_name_the_port_of_the_metrics(binary: Path, door: str) -> None:
    template = pod(rendered(binary, "prometheus-annotations"), door)
    notes = template["metadata"]["annotations"]
    (port,) = (p["containerPort"] for p in template["spec"]["containers"][0]["ports"] if p["name"] == "metrics")
    assert notes == {"prometheus.io/scrape": "true", "prometheus.io/port": str(port), "prometheus.io/path": "/metrics"}


@pytest.mark.parametrize("door", DOORS)
def test_datadogs_check_is_json_about_the_container_and_takes_every_metric(binary: Path, door: str) -> None:
    template = pod(rendered(binary, "datadog"), door)
    containers = {container["name"] for container in template["spec"]["containers"]}
    notes = template["metadata"]["annotations"]
    assert containers == {door}
    (instance,) = json.loads(notes[f"ad.datadoghq.com/{door}.checks"])["openmetrics"]["instances"]
    assert instance["openmetrics_endpoint"] == "http://%%host%%:8080/metrics"
    (pattern,) = instance["metrics"]
    assert all(re.search(pattern, metric.name.removesuffix("_total")) for metric in METRICS)
    reserved = {"cluster", "cluster_name", "env", "host", "hostname", "service", "version"}
    labels = {instance["rename_labels"].get(label, label) for metric in METRICS for label in metric.labels}
    assert not labels & reserved, "Datadog has these tags for itself"


def test_the_annotations_for_engines_are_of_their_container_and_allowed() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (STACKS / "datadog.md").read_text(encoding="utf-8"), re.DOTALL)
    notes = yaml.safe_load(blocks[0])["spec"]["podTemplate"]["annotations"]
    assert f"ad.datadoghq.com/{CONTAINER}.checks" in notes
    assert all(json.loads(text) for text in notes.values())
    assert not [key for key in notes if re.match(RESERVED_KEY, key)]


# ── Grafana's operator ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_each_dashboard_of_the_grafana_operator_reads_a_config_map_that_is_there(binary: Path, uid: str) -> None:
    found = rendered(binary, "grafana-operator")
    spec = one(found, "GrafanaDashboard", f"{uid}-dashboard")["spec"]
    config_map = one(found, "ConfigMap", spec["configMapRef"]["name"])
    assert spec["configMapRef"]["key"] in config_map["data"]
    assert "grafana_dashboard" not in config_map["metadata"]["labels"], "no sidecar shows them a second time"
    assert spec["instanceSelector"] == {"matchLabels": {"dashboards": "grafana"}}


# ── OpenShift ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_on_openshift_the_monitor_of_engines_is_in_their_project_and_looks_nowhere_else(binary: Path) -> None:
    found = rendered(binary, "openshift")
    monitors = [each for each in found if each["kind"] == "PodMonitor"]
    assert [each["metadata"]["namespace"] for each in monitors] == ["serving"]
    assert "namespaceSelector" not in monitors[0]["spec"]


def test_monitors_in_several_namespaces_have_one_name_that_no_other_release_has(binary: Path) -> None:
    named = "watchNamespaces={team-a,team-b},monitoring.otherPodsMonitor.enabled=true"
    more = f"{named},monitoring.enabled=true,monitoring.podMonitor.inEachNamespace=true"
    found = documents(render(binary, "--set", more))
    places = sorted((e["metadata"]["namespace"], e["metadata"]["name"]) for e in found if e["kind"] == "PodMonitor")
    names = (f"kvgate-vllm-others.{NAMESPACE}", f"kvgate-vllm.{NAMESPACE}")
    assert places == [(namespace, name) for namespace in ("team-a", "team-b") for name in names]


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_the_console_finds_its_dashboards(binary: Path, uid: str) -> None:
    name = f"{uid}.{NAMESPACE}"
    config_map = one(rendered(binary, "openshift"), "ConfigMap", name)
    assert config_map["metadata"]["namespace"] == "openshift-config-managed"
    assert config_map["metadata"]["labels"]["console.openshift.io/dashboard"] == "true"
    (text,) = config_map["data"].values()
    assert json.loads(text)["panels"]


# ── OpenTelemetry ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("door", DOORS)
def test_both_processes_push_and_say_who_they_are(binary: Path, door: str) -> None:
    (container,) = pod(rendered(binary, "opentelemetry"), door)["spec"]["containers"]
    variables = {each["name"]: each for each in container["env"]}
    assert {"--otlp-endpoint=http://collector.observability:4318", "--otlp-seconds=30"} < set(container["args"])
    assert variables["OTEL_RESOURCE_ATTRIBUTES"]["value"] == f"k8s.namespace.name={NAMESPACE},k8s.cluster.name=eu-1"
    secret = {"secretKeyRef": {"name": "kvgate-otlp", "key": "headers"}}
    assert variables["OTEL_EXPORTER_OTLP_HEADERS"]["valueFrom"] == secret


def egress(found: list[dict[str, Any]], policy: str) -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = one(found, "NetworkPolicy", policy)["spec"].get("egress") or []
    return rules


def ports(rules: list[dict[str, Any]]) -> list[list[int]]:
    return [[port["port"] for port in rule["ports"]] for rule in rules]


@pytest.mark.parametrize(
    ("endpoint", "port"),
    [
        ("http://collector:4318", 4318), ("https://otlp.example.org", 443), ("http://[2001:db8::1]:14318/otlp", 14318),
        ("http://prometheus", 80), ("https://otlp.example.org/otlp/v1/metrics", 443),
    ],
)  # fmt: skip
def test_the_policies_let_both_processes_reach_the_receiver_and_nothing_else(
    binary: Path, endpoint: str, port: int
) -> None:
    found = documents(render(binary, "--set", f"monitoring.otlp.endpoint={endpoint}"))
    assert ports(egress(found, "kvgate-webhook")) == [[53, 53], [port]]
    assert "Egress" not in one(found, "NetworkPolicy", "kvgate-controller")["spec"]["policyTypes"]
    hub = documents(render(binary, "--set", f"monitoring.otlp.endpoint={endpoint},models.resolve=hub"))
    assert [port] in ports(egress(hub, "kvgate-controller-egress"))


def test_without_an_endpoint_the_webhook_reaches_nothing(binary: Path) -> None:
    found = documents(render(binary))
    assert egress(found, "kvgate-webhook") == []
    assert "env" not in pod(found, "webhook")["spec"]["containers"][0]


def test_addresses_and_ports_of_the_receiver_can_be_narrowed(binary: Path) -> None:
    narrow = "monitoring.otlp.egress.cidrs={10.7.0.0/16},monitoring.otlp.egress.ports={14318}"
    found = documents(render(binary, "--set", f"monitoring.otlp.endpoint=http://collector:4318,{narrow}"))
    (rule,) = egress(found, "kvgate-webhook")[1:]
    assert rule == {"ports": [{"port": 14318, "protocol": "TCP"}], "to": [{"ipBlock": {"cidr": "10.7.0.0/16"}}]}


# ── configurations ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("line", ["3", "2"])
@pytest.mark.parametrize("file", ["annotations.yaml", "collector.yaml"])
def test_promtool_takes_the_scrape_jobs(pytestconfig: pytest.Config, tmp_path: Path, file: str, line: str) -> None:
    text = (STACKS / file).read_text(encoding="utf-8")
    whole = yaml.safe_load(text)
    if "receivers" in whole:
        assert not re.search(r"(?<!\$)\$(?!\$)", text), "the collector takes a single $ for a variable"
        whole = whole["receivers"]["prometheus"]["config"]
    configuration = yaml.safe_dump(whole).replace("$$", "$")
    if line == "2":  # Debian's package knows no discovery in Kubernetes
        configuration = re.sub(r"kubernetes_sd_configs:\n\s+- role: pod", "static_configs: []", configuration)
    (tmp_path / "prometheus.yml").write_text(configuration, encoding="utf-8")
    check_configuration(require_prometheus(pytestconfig, line), tmp_path / "prometheus.yml")


def test_the_yaml_of_the_pages_is_yaml() -> None:
    for page in STACKS.glob("*.md"):
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            assert yaml.safe_load(block), page


def test_the_label_of_engines_has_the_name_that_prometheus_gives_it() -> None:
    name = re.sub("[^a-zA-Z0-9_]", "_", OWNER_LABEL)
    for file in ("annotations.yaml", "collector.yaml", "prometheus.md"):
        assert name in (STACKS / file).read_text(encoding="utf-8"), file
