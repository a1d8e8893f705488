"""A real Prometheus that stores of an engine only what rules and dashboards read: all of that, and a quarter of the series."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from controlplane.prometheus import Prometheus, serving
from fleet.discovered_pods import PODS_FILE, Pod, engine_pod, in_a_file, pods_json
from fleet.exposition import exposition
from mixin.alerts import rule_groups
from mixin.queries import RUNNING, USAGE, WAITING
from mixin.scraping import HTTP_REQUESTS, scrape_configuration
from support.prometheus import exporting


@pytest.fixture(scope="module")
def prometheus(prometheus_assets: Path) -> Iterator[Prometheus]:
    with exporting(exposition(seconds=60).decode()) as port:
        address = f"127.0.0.1:{port}"
        other = Pod(namespace="legacy", name="qwen-abc", address=address, labels={"app": "qwen"})
        files = {
            PODS_FILE: pods_json([engine_pod("chat", "serving", address), other]),
            "rules.yaml": yaml.safe_dump(rule_groups()),
        }
        configuration = scrape_configuration(
            in_a_file, interval="250ms", rule_files=("rules.yaml",), keeps_used=True
        )  # fmt: skip
        with serving(prometheus_assets, yaml.safe_dump(configuration), files=files) as server:
            server.until("count(up == 1) == 2")
            yield server


def test_most_series_are_dropped_before_they_are_stored(prometheus: Prometheus) -> None:
    (seen, *_) = prometheus.until("scrape_samples_scraped")
    assert seen.value == 430
    for pod in prometheus.until("scrape_samples_post_metric_relabeling > 0"):
        assert pod.value < 150
    assert prometheus.query('{__name__=~"python_.+|process_.+|http_request_.+|.+_created", job=~"vllm.*"}') == []


def test_what_rules_record_is_there(prometheus: Prometheus) -> None:
    for rule in (USAGE, RUNNING, WAITING):
        found = prometheus.until(f"count({rule.name}) == 2")
        assert found


def test_series_keep_their_labels(prometheus: Prometheus) -> None:
    (series,) = prometheus.until('vllm:kv_cache_usage_perc{job="vllm"}')
    assert series.labels.items() >= {"namespace": "serving", "pod": "chat-0", "inferencedeployment": "chat"}.items()
    (answered, *_) = prometheus.until(f'{HTTP_REQUESTS}{{job="vllm", method="POST"}}')
    assert {"handler", "status", "pod"} <= answered.labels.keys()
    names = {sample.labels["__name__"] for sample in prometheus.query('{job="vllm"}')}
    assert "vllm:time_to_first_token_seconds_bucket" in names
    assert all(
        name.startswith(("vllm:", "scrape_")) or name in ("up", HTTP_REQUESTS, "ALERTS", "ALERTS_FOR_STATE")
        for name in names
    )
