"""Both lines of Prometheus with the shipped relabelings and rules, over the real exporter and a fake vLLM of two releases."""

import math
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from discovered_pods import PODS_FILE, Pod, engine_pod, in_a_file, kvgate_pod, pods_json
from fake_vllm import Engine
from fake_vllm import serving as serving_vllm
from kvgate.monitoring.alerts import ALERTS, Alert
from kvgate.monitoring.recording import RECORDING_RULES, RecordingRule
from kvgate.monitoring.rules import rule_groups
from kvgate.monitoring.scraping import in_kubernetes, scrape_configuration
from observability.exporter import kvgate_metrics
from prometheus import Prometheus, check_configuration, serving
from support.chart import ROOT
from support.prometheus import require_prometheus

NETWORK = f"127.{100 + os.getpid() % 100}.{os.getpid() // 100 % 250}"
"""Of this run: another one on the machine has another."""
CONTROLLER, CHAT, LEGACY, NAMELESS = (f"{NETWORK}.{number}" for number in (1, 2, 3, 4))
SERVING = {"namespace": "serving", "inferencedeployment": "chat"}
OLD_LABELS = {"app": "qwen"}
PODS = (
    kvgate_pod("controller", CONTROLLER),
    engine_pod("chat", "serving", CHAT),
    Pod(namespace="legacy", name="qwen-abc", ip=LEGACY, port=8000, image="vllm/vllm-openai:v0.8.5", labels=OLD_LABELS),
    Pod(namespace="legacy", name="nameless-xyz", ip=NAMELESS, port=8000, image="registry/my-vllm:1"),
)
IGNORED = (
    Pod(namespace="kvgate-system", name="w", ip=CONTROLLER, port=9443, port_name="webhook", labels=PODS[0].labels),
    Pod(namespace="serving", name="gone", ip=CHAT, port=8000, port_name="http", phase="Succeeded", labels=PODS[1].labels),
    Pod(namespace="serving", name="ray", ip=CHAT, port=6379, port_name="ray", labels=PODS[1].labels),
    Pod(namespace="legacy", name="nginx", ip=LEGACY, port=8000, image="nginx:1"),
    Pod(namespace="legacy", name="side", ip=LEGACY, port=9000),
)  # fmt: skip


@pytest.fixture(scope="module")
def prometheus(prometheus_assets: Path) -> Iterator[Prometheus]:
    configuration = scrape_configuration(in_a_file, interval="250ms", rule_files=("rules.yaml",))
    files = {PODS_FILE: pods_json((*PODS, *IGNORED)), "rules.yaml": yaml.safe_dump(rule_groups())}
    with ExitStack() as stack:
        stack.enter_context(kvgate_metrics(CONTROLLER, 8080))
        for version, address in (("0.33.0", CHAT), ("0.8.5", LEGACY), ("0.11.0", NAMELESS)):
            run = stack.enter_context(serving_vllm(Engine(vllm_version=version), (address, 8000)))
            run.begin(loops=True)
        yield stack.enter_context(serving(prometheus_assets, yaml.safe_dump(configuration), files=files))


def labels_of(prometheus: Prometheus) -> dict[str, dict[str, str]]:
    """Target → its labels, without the instance."""
    prometheus.until(f"count(up == 1) == {len(PODS)}")
    return {
        target["scrapeUrl"]: {name: value for name, value in target["labels"].items() if name != "instance"}
        for target in prometheus.targets()
    }


def test_exactly_these_pods_are_scraped_with_these_labels(prometheus: Prometheus) -> None:
    assert labels_of(prometheus) == {
        f"http://{CONTROLLER}:8080/metrics": {
            "job": "kvgate-controller", "namespace": "kvgate-system", "pod": "kvgate-controller-0",
        },
        f"http://{CHAT}:8000/metrics": {"job": "vllm", **SERVING, "pod": "chat-0"},
        f"http://{LEGACY}:8000/metrics": {
            "job": "vllm-others", "namespace": "legacy", "pod": "qwen-abc", "workload": "qwen",
        },
        f"http://{NAMELESS}:8000/metrics": {
            "job": "vllm-others", "namespace": "legacy", "pod": "nameless-xyz", "workload": "nameless-xyz",
        },
    }  # fmt: skip


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


@pytest.mark.parametrize("rule", RECORDING_RULES, ids=lambda rule: rule.name)
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
    assert {labels["workload"] for labels in found} == {"qwen", "nameless-xyz"}


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
