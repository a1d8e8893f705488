"""What a scrape sees of a deployment: figures of what is rendered, few series, none of what is gone."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from kvgate.api.conditions import ConditionType
from kvgate.api.status import Condition
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.api.validation import parse_document
from kvgate.judgement.assess import assess, effective_values
from kvgate.judgement.assessment import Assessment, Decision
from kvgate.judgement.facts import ConfigMissing, gather
from kvgate.metrics import registry
from kvgate.metrics.exporter import (
    DeploymentSnapshot,
    counter,
    gauge,
    histogram,
    new_registry,
    timed,
)
from kvgate.metrics.registry import (
    GPU_MEMORY_TERMS,
    MAX_PODS,
    MAX_SERIES,
    MAX_SERIES_OF_A_POD,
    METRICS,
    PER_DEPLOYMENT,
    MetricType,
)
from kvgate.metrics.samples import (
    MAX_LABEL_CHARACTERS,
    PARTS,
    DeploymentSample,
    MemorySample,
    ObservedSample,
    PinnedSample,
    PodSample,
    RolloutSample,
    SkipSample,
    as_admitted,
    sample_of,
    series_of,
)
from kvgate.rendering.admission import Prediction, budget_status, prediction_of
from kvgate.statement.deployment import statement_of

LEDGER_TERMS = ("weights", "peak_activation", "non_torch", "cuda_graph")
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
    return deployment, assess(deployment.spec, gather(statement_of(deployment.spec), lambda _: nowhere))


def condition(kind: str, status: str = "True") -> Condition:
    return Condition.model_validate({
        "type": kind, "status": status, "reason": "Fits", "message": "", "lastTransitionTime": "2026-11-21T00:00:00Z",
    })  # fmt: skip


def sample(*conditions: Condition, **spec: Any) -> DeploymentSample:
    return sample_of(*judged(**spec), conditions)


def text_of(*samples: DeploymentSample, units: bool = False) -> str:
    snapshot = DeploymentSnapshot()
    snapshot.publish({(each.namespace, each.name): each for each in samples})
    return snapshot.text(units=units).decode()


class Families(Collector):
    """Ready families, for prometheus_client's own writers and for look-ups."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = list(families)

    def collect(self) -> list[Family]:
        return self._families


def registered(families: Iterable[Family]) -> CollectorRegistry:
    into = CollectorRegistry()
    into.register(Families(families))
    return into


def exported(*samples: DeploymentSample) -> CollectorRegistry:
    """What a reader makes of the text."""
    return registered(text_string_to_metric_families(text_of(*samples)))


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
    for bound, blocks in (("low", budget.num_blocks.low), ("high", budget.num_blocks.high)):
        concurrency = budget.kv_cache.max_concurrency(blocks)
        assert value(into, "kvgate_full_length_requests", bound=bound) == pytest.approx(float(concurrency))


@pytest.mark.parametrize("capacity", ["Profiled", "Pinned"])
@pytest.mark.parametrize("accelerator", [SPARE, {"type": "T4-16GB"}], ids=["spare", "overdrawn"])
def test_the_terms_sum_to_the_gpus_memory(capacity: str, accelerator: dict[str, str]) -> None:
    shown = sample(accelerator=accelerator, admission={"capacity": capacity})
    into = exported(shown)
    assert shown.memory is not None
    assert sum(size for _, size in shown.memory.terms) == shown.memory.total_bytes
    assert value(into, "kvgate_gpu_memory_total_bytes") == shown.memory.total_bytes
    assert value(into, "kvgate_gpu_memory_requested_bytes") == shown.memory.requested_bytes
    assert "correction" not in dict(shown.memory.terms)
    assert shown.capacity_bytes is not None
    if shown.capacity_bytes[1]:
        spare, given_away = value(into, "kvgate_gpu_memory_bytes", term="not_requested"), shown.pinned
        left = shown.memory.total_bytes - shown.memory.requested_bytes + (given_away.forgone_bytes if given_away else 0)
        assert spare == pytest.approx(left, abs=1 << 24), "a block is not split"
        assert value(into, "kvgate_gpu_memory_bytes", term="kv_cache") == shown.capacity_bytes[1]


def test_what_observed_starts_correct_is_a_term_of_its_own() -> None:
    memory = MemorySample.of(100, 90, (("weights", 50), ("non_torch", 10)), kv_cache_bytes=25, found_bytes=25)
    assert dict(memory.terms) == {
        "weights": 50, "non_torch": 10, "correction": 5, "kv_cache": 25, "not_requested": 10,
    }  # fmt: skip


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
    assert assessment.adjustment is not None
    settings = assessment.adjustment.budget.resolved
    assert (adjusted.max_model_len_tokens, adjusted.max_num_seqs) == (settings.max_model_len, settings.max_num_seqs)
    assert (as_written.max_model_len_tokens, as_written.max_num_seqs) != (
        adjusted.max_model_len_tokens,
        adjusted.max_num_seqs,
    )


def test_gpus_are_those_of_all_wanted_replicas() -> None:
    vllm = {"maxNumSeqs": 4, "tensorParallelSize": 2, "pipelineParallelSize": 2}
    assert value(exported(sample(vllm=vllm, replicas=3)), "kvgate_gpus") == 12


@pytest.mark.parametrize(("replicas", "gpus"), [(1, 0.5), (3, 1.5)])
def test_a_shared_gpu_counts_by_parts(replicas: int, gpus: float) -> None:
    spec = {"accelerator": {"type": "H100-SXM-80GB", "sharedBy": 2}, "replicas": replicas}
    assert value(exported(sample(**spec)), "kvgate_gpus") == gpus


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


def test_without_a_budget_only_what_is_written_and_the_conditions_are_exported() -> None:
    series = Counter(metric.name for metric, _, _ in series_of(sample(condition("Accepted"), model={"name": "a/b"})))
    written = ("kvgate_deployment_info", "kvgate_max_num_seqs", "kvgate_gpus", "kvgate_condition")
    assert series == dict.fromkeys(written, 1)


def test_without_a_ledger_the_given_memory_is_exported() -> None:
    given = sample(vllm={"maxNumSeqs": 1, "kvCacheMemoryBytes": 1 << 33})
    assert given.capacity_bytes == (1 << 33,) * 3


@pytest.mark.parametrize("accelerator", [SMALL, {"type": "T4-16GB"}])
def test_bounds_are_ordered_and_a_capacity_is_never_negative(accelerator: dict[str, str]) -> None:
    tight = sample(accelerator=accelerator, vllm={"maxNumSeqs": 256})
    for bounds in (tight.capacity_tokens, tight.capacity_bytes, tight.headroom_bytes):
        assert bounds is not None
        assert bounds == tuple(sorted(bounds))
    assert tight.capacity_bytes is not None
    assert tight.capacity_bytes[0] >= 0


def test_a_share_is_of_the_expected_kv_cache_and_absent_where_none_is_expected() -> None:
    small = sample(accelerator=SMALL, vllm={"maxNumSeqs": 256})
    assert small.headroom_ratio is not None
    assert small.headroom_bytes is not None
    assert small.capacity_bytes is not None
    assert small.headroom_ratio == tuple(bound / small.capacity_bytes[1] for bound in small.headroom_bytes)
    assert small.headroom_ratio[1] < -1, "it is as large as it is"
    none = sample(accelerator={"type": "T4-16GB"}, vllm={"maxNumSeqs": 256})
    into = exported(none)
    assert none.capacity_bytes == (0, 0, 0)
    for bound in ("low", "expected", "high"):
        assert value(into, "kvgate_kv_cache_headroom_ratio", bound=bound) is None
        assert (value(into, "kvgate_kv_cache_headroom_bytes", bound=bound) or 0) < 0


def test_a_condition_is_exported_with_its_current_status_alone() -> None:
    into = exported(sample(condition("Accepted", "False"), condition("Ready", "Unknown")))
    assert value(into, "kvgate_condition", type="Accepted", status="False", reason="Fits") == 1
    assert value(into, "kvgate_condition", type="Accepted", status="True", reason="Fits") is None
    assert value(into, "kvgate_condition", type="Ready", status="Unknown", reason="Fits") == 1


SEEN = ObservedSample(pods=2, capacity_tokens=1600, usage_ratio=0.5, error_ratio=-0.25, max_model_len_tokens=800)
BUSY = PodSample(
    name="chat-0", node="gpu-0", is_ready=True, started_seconds=1.5, capacity_tokens=1600, usage_ratio=0.5,
    max_model_len_tokens=800,
)  # fmt: skip
IDLE = replace(BUSY, name="chat-1", node="gpu-1", capacity_tokens=2000, usage_ratio=0.0)
LOADING = PodSample(name="chat-2", node="gpu-2", started_seconds=2.5, restarts=3)


def test_every_metric_is_of_one_part() -> None:
    assert Counter(metric for part in PARTS for metric in part.metrics) == dict.fromkeys(PER_DEPLOYMENT, 1)


def test_a_deployment_has_few_series() -> None:
    pinned = PinnedSample(tokens=1600, forgone_bytes=1 << 30)
    shown = sample(*map(condition, ConditionType))
    memory = MemorySample.of(
        9, 8, (*((name, 1) for name in LEDGER_TERMS), ("lora", 1)), kv_cache_bytes=1, found_bytes=2
    )
    assert [name for name, _ in memory.terms] == list(GPU_MEMORY_TERMS)
    full = replace(
        shown, observed=SEEN, skip=SkipSample(until_seconds=1.8e9), pinned=pinned,
        memory=memory, load_seconds=600, recalibrated_tokens=(1, 2, 3), auto_max_model_len=(1, 2, 3),
        min_max_model_len_tokens=2,
        rollout=RolloutSample(wanted=2, ready=1, updated=2),
    )  # fmt: skip
    series = list(series_of(replace(full, pods=(BUSY, IDLE))))
    assert {metric for metric, _, _ in series} == set(PER_DEPLOYMENT), "every metric has a value here"
    assert len(series) == len({(metric.name, labels) for metric, labels, _ in series})
    of_pods = [labels for metric, labels, _ in series if "pod" in metric.labels]
    assert len(of_pods) == 2 * MAX_SERIES_OF_A_POD
    assert len(series) - len(of_pods) <= MAX_SERIES
    crowd = tuple(replace(BUSY, name=f"chat-{number:04}") for number in range(MAX_PODS + 9))
    many = list(series_of(replace(full, pods=crowd)))
    assert len(many) <= MAX_SERIES + MAX_PODS * MAX_SERIES_OF_A_POD


def test_pods_are_there_with_their_node_whether_ready_or_not() -> None:
    into = exported(replace(sample(), pods=(BUSY, IDLE, LOADING)))
    assert value(into, "kvgate_pod_info", pod="chat-0", node="gpu-0") == 1
    assert value(into, "kvgate_pod_info", pod="chat-2", node="gpu-2") == 1
    assert [value(into, "kvgate_pod_ready", pod=f"chat-{number}") for number in range(3)] == [1, 1, 0]
    assert [value(into, "kvgate_pod_restarts_total", pod=f"chat-{number}") for number in range(3)] == [0, 0, 3]
    assert [value(into, "kvgate_pod_start_time_seconds", pod=f"chat-{number}") for number in range(3)] == [
        1.5,
        1.5,
        2.5,
    ]
    capacities = [value(into, "kvgate_pod_kv_cache_capacity_tokens", pod=f"chat-{number}") for number in range(3)]
    assert capacities == [1600, 2000, None]
    headrooms = [value(into, "kvgate_pod_kv_cache_headroom_tokens", pod=f"chat-{number}") for number in range(3)]
    assert headrooms == [800, 2000, None]


def test_the_observed_headroom_is_that_of_the_worst_pod_over_the_denominator_of_the_predicted_one() -> None:
    shown = replace(sample(), pods=(IDLE, BUSY, LOADING))
    into = exported(shown)
    assert shown.capacity_tokens is not None
    assert value(into, "kvgate_observed_kv_cache_headroom_tokens") == 800
    assert value(into, "kvgate_observed_kv_cache_headroom_ratio") == 800 / shown.capacity_tokens[1]
    unpredicted = exported(replace(shown, capacity_tokens=None))
    assert value(unpredicted, "kvgate_observed_kv_cache_headroom_tokens") == 800
    assert value(unpredicted, "kvgate_observed_kv_cache_headroom_ratio") is None


def test_the_demand_in_tokens_is_what_vllm_would_print_for_just_that_memory() -> None:
    """Observed capacity may be compared with it: it is enough where it is no smaller."""
    for spec in ({}, {"model": {"name": "google/gemma-3-27b-it"}}, {"accelerator": SMALL}):
        shown = sample(**spec)
        assert shown.demand_tokens is not None
        assert shown.capacity_tokens is not None
        assert shown.headroom_bytes is not None
        assert (shown.capacity_tokens[1] >= shown.demand_tokens) == (shown.headroom_bytes[1] >= 0)


def test_a_pinned_capacity_is_exported_and_the_prediction_has_no_width() -> None:
    deployment, assessment = judged(admission={"capacity": "Pinned"})
    budget = budget_status(prediction_of(assessment))
    assert budget is not None
    shown = sample_of(deployment, assessment, ())
    into = exported(shown)
    assert value(into, "kvgate_pinned_kv_cache_tokens") == budget["pinned"]["capacityTokens"]
    assert value(into, "kvgate_forgone_kv_cache_bytes") == budget["pinned"]["forgoneBytes"] > 0
    bounds = {value(into, "kvgate_kv_cache_capacity_tokens", bound=bound) for bound in ("low", "expected", "high")}
    assert bounds == {budget["capacityTokens"]} == {budget["pinned"]["capacityTokens"]}


def test_what_was_pinned_at_the_admission_is_exported_whatever_would_be_pinned_now() -> None:
    deployment, then = judged(admission={"capacity": "Pinned"})
    admission = promise(then)
    budget = budget_status(admission)
    _, now = judged(admission={"capacity": "Pinned"}, vllm={"maxNumSeqs": 4, "gpuMemoryUtilization": "0.80"})
    shown = as_admitted(sample_of(deployment, now, ()), effective_values(deployment.spec, then), admission.figures)
    assert budget is not None
    assert shown.pinned == PinnedSample(
        tokens=budget["pinned"]["capacityTokens"], forgone_bytes=budget["pinned"]["forgoneBytes"]
    )
    profiled = as_admitted(shown, effective_values(deployment.spec, then), promise(judged()[1]).figures)
    assert profiled.pinned is None


def test_what_pods_did_not_tell_has_no_series() -> None:
    into = exported(replace(sample(), observed=ObservedSample(pods=0)))
    assert value(into, "kvgate_observed_pods") == 0
    assert value(into, "kvgate_observed_kv_cache_capacity_tokens") is None
    assert value(into, "kvgate_prediction_error_ratio") is None


def test_prometheus_clients_own_writers_would_say_the_same() -> None:
    odd = replace(sample(), name="odd", model='a"\n\\b', headroom_ratio=(-1.0, 1e-9, 0.1 + 0.2))
    samples = (replace(sample(*map(condition, ConditionType)), pods=(BUSY, LOADING)), odd)
    kinds = {MetricType.GAUGE: GaugeMetricFamily, MetricType.COUNTER: CounterMetricFamily}
    families = {
        metric.name: kinds[metric.kind](metric.name, metric.help, labels=metric.labels, unit=metric.unit)
        for metric in PER_DEPLOYMENT
    }
    for each in samples:
        for metric, labels, number in series_of(each):
            families[metric.name].add_metric([each.namespace, each.name, *labels], number)
    theirs = registered(families.values())
    for ours, text in (
        (text_of(*samples), generate_latest(theirs)),
        (text_of(*samples, units=True) + "# EOF\n", generate_openmetrics(theirs)),
    ):
        assert [by_words(line) for line in ours.splitlines()] == [by_words(line) for line in text.decode().splitlines()]


def by_words(line: str) -> tuple[list[str], float | str]:
    """A line without the order of its labels and the spelling of its number."""
    if line.startswith("#"):
        return [], line
    labels, number = line.rsplit(" ", 1)
    return sorted(labels.replace("{", ",").rstrip("}").split(",")), float(number)


def test_a_deleted_deployment_is_gone_at_the_next_scrape() -> None:
    snapshot, here = DeploymentSnapshot(), sample()
    samples = {KEY: here, ("serving", "other"): replace(here, name="other")}
    snapshot.publish(samples)
    del samples["serving", "other"]
    assert 'inferencedeployment="other"' in snapshot.text(units=False).decode(), (
        "a snapshot does not change under a scrape"
    )
    snapshot.publish(samples)
    text = snapshot.text(units=False).decode()
    assert 'inferencedeployment="other"' not in text
    assert 'inferencedeployment="chat"' in text


def test_what_is_kept_from_scrape_to_scrape_is_what_would_be_written_anew() -> None:
    full = replace(sample(*map(condition, ConditionType)), observed=SEEN, pods=(BUSY, IDLE, LOADING))
    steps = [
        full,
        full,
        replace(full, observed=replace(SEEN, usage_ratio=0.75), pods=(replace(BUSY, usage_ratio=0.75), IDLE, LOADING)),
        replace(full, pods=(BUSY, IDLE, replace(LOADING, is_ready=True))),
        replace(full, pods=(BUSY, IDLE)),
        replace(full, conditions=(("Accepted", "False", "BudgetExceeded"),)),
        replace(full, capacity_tokens=(1, 2, 3)),
        replace(full, observed=replace(SEEN, error_ratio=0.5)),
    ]
    snapshot, other = DeploymentSnapshot(), replace(full, name="other")
    for step in steps:
        for samples in ({KEY: step}, {KEY: step, ("serving", "other"): other}):
            snapshot.publish(samples)
            for units in (False, True):
                assert snapshot.text(units=units).decode() == text_of(*samples.values(), units=units)


def test_without_an_object_the_families_are_there() -> None:
    text = text_of(units=True)
    assert text.count("# TYPE ") == len(PER_DEPLOYMENT)
    assert "{" not in text


def test_a_long_value_is_cut_wherever_it_stands() -> None:
    long = "x" * (1 << 20)
    pod = replace(BUSY, name=long, node=long)
    odd = replace(
        sample(), namespace=long, name=long, model=long, accelerator=long, kv_cache_dtype=long, policy=long,
        conditions=((long, long, long),), pods=(pod,),
    )  # fmt: skip
    values = [found for _, labels, _ in series_of(odd) for found in labels]
    assert max(map(len, values)) == MAX_LABEL_CHARACTERS
    assert max(map(len, text_of(odd).splitlines())) < 8 * MAX_LABEL_CHARACTERS


def test_text_of_a_user_cannot_break_out_of_a_label() -> None:
    evil = 'a"} 1\nkvgate_leader 1\n\\'
    families = {
        family.name: family for family in text_string_to_metric_families(text_of(replace(sample(), model=evil)))
    }
    assert families["kvgate_deployment_info"].samples[0].labels["model"] == evil
    assert "kvgate_leader" not in families


@pytest.mark.parametrize(
    ("about", "is_shown"),
    [
        ({"namespace": "serving", "inferencedeployment": "chat"}, True),
        ({"uid": 'a"\\b'}, False),
        ({}, False),
        ({"uid": "x" * 125}, True),
        ({"uid": "x" * 126}, False),
        ({"uid": "a\nb"}, False),
        ({"uid": "\ud800"}, False),
    ],
    ids=["an object", "marks", "nobody", "just short enough", "too long", "two lines", "half a character"],
)
def test_a_duration_says_which_run_it_was_where_openmetrics_is_asked_for(
    about: dict[str, str],
    *,
    is_shown: bool,
) -> None:
    into = CollectorRegistry()
    durations = histogram(registry.RECONCILE_DURATION, into)
    with pytest.raises(KeyError), timed(durations, about):
        raise KeyError
    text = generate_openmetrics(into).decode()
    families = read_openmetrics(text)
    found = [sample.exemplar.labels for family in families for sample in family.samples if sample.exemplar]
    assert found == ([about] if is_shown else [])
    assert into.get_sample_value("kvgate_reconcile_duration_seconds_count") == 1
    assert " # {" not in generate_latest(into).decode()


def test_every_metric_of_a_process_can_be_served() -> None:
    into = CollectorRegistry()
    make = {MetricType.COUNTER: counter, MetricType.GAUGE: gauge, MetricType.HISTOGRAM: histogram}
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


def promise(assessment: Assessment) -> Prediction:
    """What an admission promises."""
    found = prediction_of(assessment)
    assert found is not None
    return found


def test_a_verdict_that_stands_is_shown_with_its_own_figures_whatever_is_known_now() -> None:
    deployment, then = judged()
    promised, now = (
        sample_of(deployment, then, ()),
        sample_of(*judged(vllm={"maxNumSeqs": 4, "gpuMemoryUtilization": "0.6"}), ()),
    )
    assert now.capacity_tokens != promised.capacity_tokens
    assert as_admitted(now, effective_values(deployment.spec, then), promise(then).figures) == promised
    unknown = as_admitted(now, effective_values(deployment.spec, then), None)
    assert unknown.capacity_tokens == now.capacity_tokens, "a record without figures promises nothing"
