"""Both lines of Prometheus with the shipped relabelings and rules, over the real exporter and a fake vLLM of two releases."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from controlplane.programs import free_ports
from controlplane.prometheus import Prometheus, check_configuration, check_metrics, serving
from fleet.discovered_pods import PODS_FILE, Pod, engine_pod, in_a_file, kvgate_pod, pods_json
from fleet.fake_vllm import Engine
from fleet.fake_vllm import serving as serving_vllm
from fleet.monitored import judged_samples, kvgate_processes
from kvgate.metrics import registry
from kvgate.metrics.exporter import DeploymentSnapshot, Samples, histogram, metrics_answer, new_registry, timed
from kvgate.metrics.samples import ObservedSample, PodSample, RolloutSample
from mixin.alert import Alert
from mixin.alerts import ALERTS, rule_groups
from mixin.queries import GPU_MEMORY_USED, GPUS_OF_POD, RECORDING_RULES, RecordingRule
from mixin.scraping import in_kubernetes, scrape_configuration
from support.chart import ROOT
from support.prometheus import exporting, require_prometheus

RELEASES = ("0.33.0", "0.8.5", "0.11.0")
"""Of vLLM: with the new names, the old ones, and both."""
FITTING = "llama-3-1-8b"
"""One of deploy/samples."""
SERVING = {"namespace": "serving", "inferencedeployment": FITTING}
ERROR = -0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """What runs, and what looks at it."""

    prometheus: Prometheus
    expected: Mapping[str, Mapping[str, str]]
    """Address → labels of each target that is to be scraped."""


def published() -> Samples:
    (sample,) = (sample for sample in judged_samples() if sample.name == FITTING)
    observed = ObservedSample(pods=1, capacity_tokens=30_000, usage_ratio=0.5, error_ratio=ERROR)
    ready = PodSample(name=f"{FITTING}-0", is_ready=True, capacity_tokens=30_000, usage_ratio=0.5)
    loading = PodSample(name=f"{FITTING}-1", started_seconds=time.time())
    whole = msgspec.structs.replace(
        sample,
        observed=observed,
        pods=(ready, loading),
        load_seconds=3600,
        rollout=RolloutSample(wanted=2, ready=1, updated=2),
    )
    return {(sample.namespace, sample.name): whole}


def expected_of(processes: Mapping[str, str], ours: str, legacy: str, nameless: str) -> dict[str, dict[str, str]]:
    return {
        **{
            address: {"job": f"kvgate-{name}", "namespace": "kvgate-system", "pod": f"kvgate-{name}"}
            for name, address in processes.items()
        },
        ours: {"job": "vllm", **SERVING, "pod": f"{FITTING}-0"},
        legacy: {"job": "vllm-others", "namespace": "legacy", "pod": "qwen-abc", "workload": "qwen"},
        nameless: {"job": "vllm-others", "namespace": "legacy", "pod": "x-yz", "workload": "x-yz"},
    }


def pods_of(processes: Mapping[str, str], ours: str, legacy: str, nameless: str) -> list[Pod]:
    """Those that are to be scraped, and many that are not."""
    owned, controller = engine_pod(FITTING, "serving", ours), kvgate_pod("controller", processes["controller"])
    other = Pod(
        namespace="legacy", name="qwen-abc", address=legacy, image="vllm/vllm-openai:v0.8.5", labels={"app": "qwen"}
    )
    return [
        *(kvgate_pod(name, address) for name, address in processes.items()),
        owned,
        other,
        Pod(namespace="legacy", name="x-yz", address=nameless, image="registry/my-vllm:1"),
        replace(controller, name="of-the-webhook", container_port=9443, port_name="webhook"),
        replace(owned, name="gone", phase="Succeeded"),
        replace(owned, name="with-ray", container_port=6379, port_name="ray"),
        replace(other, name="nginx", image="nginx:1"),
        replace(other, name="side-car", container_port=9000),
    ]


@pytest.fixture(scope="module")
def scene(prometheus_assets: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        ports = stack.enter_context(kvgate_processes(published))
        engines = [f"127.0.0.1:{port}" for port in free_ports(len(RELEASES))]
        for version, address in zip(RELEASES, engines, strict=True):
            host, port = address.split(":")
            stack.enter_context(serving_vllm(Engine(vllm_version=version), (host, int(port)))).begin(loops=True)
        addresses = ({name: f"127.0.0.1:{port}" for name, port in ports.items()}, *engines)
        configuration = scrape_configuration(in_a_file, interval="250ms", rule_files=("rules.yaml",))
        files = {PODS_FILE: pods_json(pods_of(*addresses)), "rules.yaml": yaml.safe_dump(rule_groups())}
        server = stack.enter_context(serving(prometheus_assets, yaml.safe_dump(configuration), files=files))
        yield Scene(prometheus=server, expected=expected_of(*addresses))


@pytest.fixture
def prometheus(scene: Scene) -> Prometheus:
    return scene.prometheus


def test_exactly_these_pods_are_scraped_with_these_labels(scene: Scene) -> None:
    scene.prometheus.until(f"count(up == 1) == {len(scene.expected)}")
    found = {target["labels"]["instance"]: target["labels"] for target in scene.prometheus.targets()}
    assert found == {address: {**labels, "instance": address} for address, labels in scene.expected.items()}


@pytest.mark.parametrize(
    ("name", "pods"),
    [
        ("vllm:num_requests_waiting", 3),
        ("vllm:kv_cache_usage_perc", 2),
        ("vllm:gpu_cache_usage_perc", 2),
        ("vllm:num_preemptions_total", 3),
        ("vllm:time_to_first_token_seconds_count", 3),
    ],
)
def test_vllms_names_have_their_colon_whatever_was_negotiated(prometheus: Prometheus, name: str, pods: int) -> None:
    prometheus.until(f"count(count by (pod) ({name})) == {pods}")
    assert prometheus.query(f"count({name.replace(':', '_')})") == []


def test_the_namespace_of_a_figure_is_the_inferencedeployments(prometheus: Prometheus) -> None:
    (sample,) = prometheus.until("kvgate_kv_cache_demand_bytes")
    assert {name: sample.labels[name] for name in SERVING} == SERVING
    (process,) = prometheus.until("kvgate_leader")
    assert process.labels["namespace"] == "kvgate-system"


NOT_IN_THE_SCENE = (GPU_MEMORY_USED, GPUS_OF_POD)
"""No dcgm-exporter runs there; tests/observability/scenes.py has its metric."""


@pytest.mark.parametrize(
    "rule", [rule for rule in RECORDING_RULES if rule not in NOT_IN_THE_SCENE], ids=lambda rule: rule.name
)
def test_a_recording_rule_records_finite_numbers(prometheus: Prometheus, rule: RecordingRule) -> None:
    samples = prometheus.until(rule.name)
    assert samples
    assert all(math.isfinite(sample.value) for sample in samples)


def test_a_prediction_meets_what_vllm_says(prometheus: Prometheus) -> None:
    join = "kvgate:kv_cache_usage_observed:max_ratio * on (namespace, inferencedeployment) kvgate_max_num_seqs"
    (sample,) = prometheus.until(join)
    assert sample.labels == SERVING


def test_the_query_of_the_keda_example_is_one_number(prometheus: Prometheus) -> None:
    """KEDA takes no other answer than one element."""
    scaled = yaml.safe_load((ROOT / "deploy" / "keda" / "scaledobject.yaml").read_text(encoding="utf-8"))
    (trigger,) = scaled["spec"]["triggers"]
    (sample,) = prometheus.until(trigger["metadata"]["query"])
    assert sample.value >= 0
    assert sample.labels == SERVING


def test_engines_without_an_inferencedeployment_are_told_apart(prometheus: Prometheus) -> None:
    expression = 'kvgate:requests_waiting:sum{inferencedeployment=""}'
    prometheus.until(f"count({expression}) == 2")
    found = [{**sample.labels} for sample in prometheus.query(expression)]
    assert {labels["workload"] for labels in found} == {"qwen", "x-yz"}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alerts_expression_is_evaluated(prometheus: Prometheus, alert: Alert) -> None:
    prometheus.until("kvgate:kv_cache_headroom:ratio")
    assert all(math.isfinite(sample.value) for sample in prometheus.query(alert.expression))


def test_no_rule_ever_failed(prometheus: Prometheus) -> None:
    prometheus.until("kvgate:kv_cache_headroom:ratio")
    rules = prometheus.rules()
    assert len(rules) == len(ALERTS) + len(RECORDING_RULES)
    assert {rule["name"]: rule.get("lastError", "") for rule in rules if rule["health"] == "err"} == {}


def test_an_alert_begins_with_what_is_seen(prometheus: Prometheus) -> None:
    """The exporter's prediction is a quarter off; whether alerts fire in time is promtool's to say."""
    prometheus.until('ALERTS{alertname="KvgatePredictionWrong",alertstate="pending"}')
    (alert,) = (each for each in prometheus.alerts() if each["labels"]["alertname"] == "KvgatePredictionWrong")
    assert {name: alert["labels"][name] for name in SERVING} == SERVING


def test_prometheus_stores_which_object_a_slow_run_was_about(prometheus_assets: Path) -> None:
    into = new_registry()
    with timed(histogram(registry.RECONCILE_DURATION, into), {**SERVING}):
        pass
    body, content_type = metrics_answer("application/openmetrics-text;version=1.0.0", into, None)
    with (
        exporting(body.decode(), content_type=content_type) as port,
        serving(
            prometheus_assets,
            yaml.safe_dump(
                {
                    "global": {"scrape_interval": "250ms"},
                    "scrape_configs": [{"job_name": "kvgate", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}],
                }
            ),
            flags=["--enable-feature=exemplar-storage"],
        ) as server,
    ):
        server.until("kvgate_reconcile_duration_seconds_count == 1")
        now = time.time()
        asked = {"query": f"{registry.RECONCILE_DURATION.name}_bucket", "start": now - 3600, "end": now + 60}
        (found,) = server.get("query_exemplars", **asked)
    assert found["exemplars"][0]["labels"] == SERVING


def test_promtool_finds_nothing_wrong_with_our_metrics(prometheus_assets: Path) -> None:
    snapshot = DeploymentSnapshot()
    snapshot.publish(published())
    body, _ = metrics_answer("", new_registry(), snapshot)
    assert check_metrics(prometheus_assets, body.decode()) == ""


def test_the_configuration_that_is_shipped_is_accepted(pytestconfig: pytest.Config) -> None:
    """By the line that knows discovery in Kubernetes; Debian's 2.42 is built without."""
    folder = require_prometheus(pytestconfig, "3")
    check_configuration(folder, ROOT / "deploy" / "prometheus" / "scrape.yaml")


def test_the_same_with_targets_from_a_file_is_accepted_by_both(prometheus_assets: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule_groups()), encoding="utf-8")
    configuration = scrape_configuration(in_a_file, rule_files=("rules.yaml",))
    (tmp_path / "scrape.yaml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
    check_configuration(prometheus_assets, tmp_path / "scrape.yaml")


def test_only_where_targets_come_from_differs_from_what_is_shipped() -> None:
    shipped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "scrape.yaml").read_text(encoding="utf-8"))
    tested = scrape_configuration(in_a_file, rule_files=("rules.yaml",))
    assert [without_discovery(job) for job in shipped["scrape_configs"]] == [
        without_discovery(job) for job in tested["scrape_configs"]
    ]
    assert all(job.items() >= in_kubernetes("").items() for job in shipped["scrape_configs"])


def without_discovery(job: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in job.items() if not key.endswith("_sd_configs")}
