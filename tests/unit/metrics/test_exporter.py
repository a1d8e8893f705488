"""What a scrape sees of a deployment: figures of what is rendered, few series, none of what is gone."""

import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kvgate.api.conditions import ConditionType
from kvgate.api.status import Condition
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.api.validation import parse_document
from kvgate.engine import Assessment, Decision, assess
from kvgate.facts import ConfigMissing, gather
from kvgate.metrics import registry
from kvgate.metrics.exporter import (
    DeploymentCollector,
    DeploymentSample,
    counter,
    gauge,
    histogram,
    new_registry,
    sample_of,
    series_of,
)
from kvgate.metrics.registry import METRICS, PER_DEPLOYMENT, Kind

MAX_SERIES = 40
KEY = ("serving", "chat")
OWNER = {"namespace": "serving", "inferencedeployment": "chat"}
SPARE = {"type": "H100-SXM-80GB"}
SMALL = {"type": "L4-24GB"}


def judged(**spec: Any) -> tuple[InferenceDeployment, Assessment]:
    whole = {"model": {"name": "Qwen/Qwen3-8B"}, "accelerator": SPARE, "vllm": {"maxNumSeqs": 4}, **spec}
    deployment = parse_document({
        "apiVersion": "kvgate.io/v1alpha1",
        "kind": "InferenceDeployment",
        "metadata": {"name": "chat", "namespace": "serving"},
        "spec": whole,
    })  # fmt: skip
    nowhere = ConfigMissing(message="there is none", remediation="make one")
    return deployment, assess(deployment.spec, gather(deployment.spec, lambda _: nowhere))


def condition(kind: str, status: str = "True") -> Condition:
    return Condition.model_validate({
        "type": kind, "status": status, "reason": "Fits", "message": "", "lastTransitionTime": "2026-11-21T00:00:00Z",
    })  # fmt: skip


def sample(*conditions: Condition, **spec: Any) -> DeploymentSample:
    return sample_of(*judged(**spec), conditions)


def exported(*samples: DeploymentSample) -> CollectorRegistry:
    collector, into = DeploymentCollector(), CollectorRegistry()
    into.register(collector)
    collector.publish({(each.namespace, each.name): each for each in samples})
    return into


def value(into: CollectorRegistry, name: str, **labels: str) -> float | None:
    return into.get_sample_value(name, OWNER | labels)


def test_the_figures_are_those_of_the_budget() -> None:
    _, assessment = judged()
    budget = assessment.budget
    assert budget is not None
    assert budget.tightest is not None
    assert budget.tightest.ledger is not None
    assert budget.headroom is not None
    assert budget.kv_cache is not None
    assert budget.num_blocks is not None
    into = exported(sample())
    expected = {"bound": "expected"}
    available, headroom = budget.tightest.available, budget.headroom
    assert value(into, "kvgate_kv_cache_demand_bytes") == budget.demand_bytes
    assert value(into, "kvgate_kv_cache_capacity_bytes", bound="low") == available.low
    assert value(into, "kvgate_kv_cache_capacity_bytes", bound="high") == available.high
    assert value(into, "kvgate_kv_cache_headroom_bytes", **expected) == headroom.expected
    assert value(into, "kvgate_kv_cache_headroom_ratio", **expected) == headroom.expected / available.expected
    assert value(into, "kvgate_kv_cache_capacity_tokens", **expected) == budget.kv_cache.num_tokens(
        budget.num_blocks.expected
    )
    assert value(into, "kvgate_gpu_memory_bytes", term="weights") == budget.tightest.ledger.weights.expected


def test_the_ledger_adds_up() -> None:
    into = exported(sample())
    spent = ("weights", "peak_activation", "non_torch", "cuda_graph")
    parts = [value(into, "kvgate_gpu_memory_bytes", term=term) for term in spent]
    parts.append(value(into, "kvgate_kv_cache_capacity_bytes", bound="expected"))
    assert sum(part for part in parts if part) == value(into, "kvgate_gpu_memory_bytes", term="requested")


def test_an_adjusted_deployment_is_exported_as_it_is_rendered() -> None:
    big = {"accelerator": SMALL, "vllm": {"maxNumSeqs": 64}}
    knobs = {"knobs": ["KvCacheDtype", "MaxNumSeqs", "MaxModelLen"]}
    deployment, assessment = judged(**big, admission={"policy": "Adjust", "adjust": knobs})
    assert assessment.decision is Decision.ADMIT_ADJUSTED
    adjusted = sample_of(deployment, assessment, ())
    as_written = sample(**big)
    assert adjusted.headroom_bytes is not None
    assert as_written.headroom_bytes is not None
    assert adjusted.headroom_bytes[0] >= 0 > as_written.headroom_bytes[0]
    assert adjusted.policy == "Adjust"


@pytest.mark.parametrize(
    ("spec", "kv_cache_dtype", "accelerator"),
    [
        ({"vllm": {"kvCacheDtype": "fp8"}}, "fp8", "H100-SXM-80GB"),
        ({"accelerator": {"type": "NVIDIA H100 80GB HBM3"}}, "auto", "H100-SXM-80GB"),
        ({"accelerator": {"type": "Z9"}}, "auto", "Z9"),
    ],
)
def test_the_info_names_what_runs(spec: dict[str, Any], kv_cache_dtype: str, accelerator: str) -> None:
    labels = {"model": "Qwen/Qwen3-8B", "accelerator": accelerator, "kv_cache_dtype": kv_cache_dtype}
    assert value(exported(sample(**spec)), "kvgate_deployment_info", **labels, policy="Reject") == 1


def test_without_a_budget_only_the_info_and_the_conditions_are_exported() -> None:
    series = Counter(metric.name for metric, _, _ in series_of(sample(condition("Accepted"), model={"name": "a/b"})))
    assert series == {"kvgate_deployment_info": 1, "kvgate_condition": 1}


def test_without_a_ledger_the_given_memory_is_exported() -> None:
    given = sample(vllm={"maxNumSeqs": 1, "kvCacheMemoryBytes": 1 << 33})
    assert given.capacity_bytes == (1 << 33,) * 3


@pytest.mark.parametrize("accelerator", [SMALL, {"type": "T4-16GB"}])
def test_bounds_are_ordered_and_a_capacity_is_never_negative(accelerator: dict[str, str]) -> None:
    tight = sample(accelerator=accelerator, vllm={"maxNumSeqs": 256})
    for bounds in (tight.capacity_tokens, tight.capacity_bytes, tight.headroom_bytes, tight.headroom_ratio):
        assert bounds is not None
        assert bounds == tuple(sorted(bounds))
    assert tight.capacity_bytes is not None
    assert tight.headroom_ratio is not None
    assert tight.capacity_bytes[0] >= 0
    assert tight.headroom_ratio == (-1, -1, -1)


def test_a_condition_is_exported_with_its_current_status_alone() -> None:
    into = exported(sample(condition("Accepted", "False"), condition("Ready", "Unknown")))
    assert value(into, "kvgate_condition", type="Accepted", status="False") == 1
    assert value(into, "kvgate_condition", type="Accepted", status="True") is None
    assert value(into, "kvgate_condition", type="Ready", status="Unknown") == 1


def test_a_deployment_has_few_series() -> None:
    full = sample(*map(condition, ConditionType))
    series = list(series_of(full))
    assert {metric for metric, _, _ in series} == set(PER_DEPLOYMENT), "every metric has a value here"
    assert len(series) == len({(metric.name, labels) for metric, labels, _ in series})
    room_for_ten_more = [condition(f"Later{number}") for number in range(10)]
    assert len(list(series_of(sample(*map(condition, ConditionType), *room_for_ten_more)))) <= MAX_SERIES


def test_a_deleted_deployment_is_gone_at_the_next_scrape() -> None:
    collector, into = DeploymentCollector(), CollectorRegistry()
    into.register(collector)
    here = sample()
    samples = {KEY: here, ("serving", "other"): replace(here, name="other")}
    collector.publish(samples)
    assert b'inferencedeployment="other"' in generate_latest(into)
    del samples["serving", "other"]
    assert b'inferencedeployment="other"' in generate_latest(into), "a snapshot does not change under a scrape"
    collector.publish(samples)
    text = generate_latest(into)
    assert b'inferencedeployment="other"' not in text
    assert b'inferencedeployment="chat"' in text


def test_text_of_a_user_cannot_break_out_of_a_label() -> None:
    evil = 'a"} 1\nkvgate_leader 1\n\\'
    text = generate_latest(exported(replace(sample(), model=evil))).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["kvgate_deployment_info"].samples[0].labels["model"] == evil
    assert "kvgate_leader" not in families


def test_a_thousand_deployments_are_scraped_within_the_usual_timeout() -> None:
    one = sample(*map(condition, ConditionType))
    into = exported(*(replace(one, name=f"chat-{number}") for number in range(1000)))
    start = time.perf_counter()
    assert len(generate_latest(into)) > 1000
    assert time.perf_counter() - start < 5


def test_every_metric_of_a_process_can_be_served() -> None:
    into = CollectorRegistry()
    make = {Kind.COUNTER: counter, Kind.GAUGE: gauge, Kind.HISTOGRAM: histogram}
    for metric in registry.PER_PROCESS:
        make[metric.kind](metric, into)
    text = generate_latest(into).decode()
    for metric in METRICS:
        assert (f"# TYPE {metric.name} {metric.kind}" in text) == (metric in registry.PER_PROCESS)


def test_both_processes_serve_their_build_their_catalogues_and_their_memory() -> None:
    text = generate_latest(new_registry()).decode()
    for name in ("kvgate_build_info{", "kvgate_catalogue_entries{", "process_resident_memory_bytes "):
        assert name in text
    assert "_created" not in text
