"""Metrics that are pushed: names and values are those of a scrape, and a receiver that hangs, refuses or lies costs its own thread only."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client import CollectorRegistry

pytest.importorskip("opentelemetry.sdk", reason="the extra `otlp` is not installed")

from kvgate import __version__
from kvgate.metrics import registry
from kvgate.metrics.exporter import DeploymentSnapshot, counter, gauge, histogram, new_registry
from kvgate.metrics.otlp import MOST_POINTS, Pusher, PushFailed, endpoint_of, pushing, unit_of
from kvgate.metrics.registry import METRICS, OWNER_LABELS, MetricType
from kvgate.metrics.samples import DeploymentSample, MemorySample, PodSample, series_of
from kvgate.runtime.background import Troubles
from kvgate.runtime.service import OtlpOptions
from support.otlp import Answer, Receiver, answering, attributes, receiving, rejecting, talking_for_ever

FAR = 1e12
"""Seconds: a push that may take as long as it wants."""


def sample(name: str = "chat") -> DeploymentSample:
    return DeploymentSample(
        namespace="serving", name=name, model="Qwen/Qwen3-8B", accelerator="L4-24GB", kv_cache_dtype="auto", policy="Adjust",
        capacity_tokens=(1, 2, 3), headroom_ratio=(-0.25, 0.125, 0.5), max_num_seqs=4,
        memory=MemorySample(total_bytes=24 << 30, requested_bytes=20 << 30, terms=(("weights", 16 << 30),)),
        pods=(PodSample(name="chat-0", node="gpu-0", restarts=2),),
    )  # fmt: skip


def snapshot(*samples: DeploymentSample) -> DeploymentSnapshot:
    published = DeploymentSnapshot()
    published.publish({(each.namespace, each.name): each for each in samples})
    return published


@pytest.fixture
def own() -> CollectorRegistry:
    into = new_registry()
    counter(registry.API_REQUESTS, into).labels("GET", "200").inc(7)
    gauge(registry.LEADER, into).labels("kvgate-controller").set(1)
    durations = histogram(registry.RECONCILE_DURATION, into)
    for seconds in (0.001, 0.3, 1e6):
        durations.observe(seconds)
    return into


@contextmanager
def pusher(
    receiver: Receiver, own: CollectorRegistry, deployments: DeploymentSnapshot | None = None, seconds: float = 60
) -> Iterator[tuple[Pusher, Counter[str]]]:
    """A pusher without its thread, and its failures by loop."""
    failures: Counter[str] = Counter()
    troubles = Troubles(lambda loop: failures.update([loop]))
    options = OtlpOptions(endpoint=receiver.address, interval_seconds=seconds)
    made = Pusher(options, "kvgate-controller", own, troubles, deployments)
    try:
        yield made, failures
    finally:
        made.stop()


@pytest.fixture
def received(own: CollectorRegistry) -> Iterator[Receiver]:
    """All that one push of a full process brings."""
    with receiving(answering()) as receiver, pusher(receiver, own, snapshot(sample(), sample("other"))) as (each, _):
        each.push(until=FAR)
        yield receiver


def test_every_series_of_an_object_arrives_with_its_name_labels_and_value(received: Receiver) -> None:
    owner = dict(zip(OWNER_LABELS, ("serving", "chat"), strict=True))
    expected = [
        (metric.name, tuple(sorted((owner | dict(zip(metric.labels[2:], values, strict=True))).items())), value)
        for metric, values, value in series_of(sample())
    ]
    assert len(expected) > 8
    for name, labels, value in expected:
        assert received.points(name)[labels] == value


def test_the_process_own_metrics_arrive_with_the_names_of_a_scrape(received: Receiver) -> None:
    assert received.points("kvgate_api_requests_total") == {(("code", "200"), ("verb", "GET")): 7}
    assert received.points("kvgate_leader") == {(("lease", "kvgate-controller"),): 1}
    assert received.points("kvgate_build_info") == {(("version", __version__),): 1}
    assert received.metrics["kvgate_api_requests_total"].sum.is_monotonic
    assert received.metrics["kvgate_api_requests_total"].sum.aggregation_temporality == 2, "cumulative"
    assert "process_resident_memory_bytes" in received.metrics


def test_a_histogram_has_the_same_buckets_each_with_its_own_count(received: Receiver) -> None:
    (point,) = received.metrics["kvgate_reconcile_duration_seconds"].histogram.data_points
    assert tuple(point.explicit_bounds) == registry.RECONCILE_DURATION.buckets
    assert (point.count, sum(point.bucket_counts), point.bucket_counts[-1]) == (3, 3, 1)
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert point.sum == pytest.approx(1e6 + 0.301)
    assert not point.HasField("min")


def test_counters_begin_when_the_process_did_and_all_points_are_of_one_moment(received: Receiver) -> None:
    (point,) = received.metrics["kvgate_api_requests_total"].sum.data_points
    assert 0 < point.start_time_unix_nano <= point.time_unix_nano
    moments = {point.time_unix_nano for metric in received.metrics.values() for point in metric.gauge.data_points}
    assert len(moments) == 1


def test_units_are_those_of_opentelemetry(received: Receiver) -> None:
    assert {name: received.metrics[name].unit for name in ("kvgate_kv_cache_capacity_tokens", "kvgate_gpu_memory_bytes")} == {
        "kvgate_kv_cache_capacity_tokens": "{token}", "kvgate_gpu_memory_bytes": "By",
    }  # fmt: skip
    assert unit_of("process_cpu_seconds_total") == "s"
    known = {"bytes": "By", "seconds": "s", "ratio": "1", "tokens": "{token}", "": ""}
    for metric in METRICS:
        assert unit_of(metric.name) == known[metric.unit], metric.name


def test_the_process_says_which_one_it_is(
    received: Receiver, own: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = dict(attributes(received.requests[0].resource_metrics[0].resource))
    assert (resource["service.name"], resource["service.version"]) == ("kvgate-controller", __version__)
    assert resource["service.instance.id"]
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.cluster.name=eu-1,service.instance.id=pod-7")
    with receiving(answering()) as receiver, pusher(receiver, own) as (each, _):
        each.push(until=FAR)
    resource = dict(attributes(receiver.requests[0].resource_metrics[0].resource))
    assert resource["k8s.cluster.name"] == "eu-1"
    assert resource["service.instance.id"] == "pod-7"


def test_the_standard_variables_give_headers_and_compression(
    own: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    with receiving(answering()) as receiver, pusher(receiver, own) as (each, _):
        each.push(until=FAR)
    assert receiver.headers[0]["api-key"] == "secret"
    assert receiver.headers[0]["Content-Encoding"] == "gzip"
    assert receiver.paths == ["/v1/metrics"]


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://collector:4318", "http://collector:4318/v1/metrics"),
        ("http://collector:4318/", "http://collector:4318/v1/metrics"),
        ("http://prometheus/api/v1/otlp", "http://prometheus/api/v1/otlp/v1/metrics"),
        ("http://collector:4318/v1/metrics", "http://collector:4318/v1/metrics"),
    ],
)
def test_the_path_of_otlp_is_added_to_a_base_address(given: str, used: str) -> None:
    assert endpoint_of(given) == used


def test_many_objects_go_in_small_requests_and_none_is_lost(own: CollectorRegistry) -> None:
    many = [sample(f"chat-{number}") for number in range(300)]
    with receiving(answering()) as receiver, pusher(receiver, own, snapshot(*many)) as (each, _):
        each.push(until=FAR)
    assert len(receiver.points("kvgate_max_num_seqs")) == 300
    sizes = [
        sum(len(m.gauge.data_points) for r in request.resource_metrics for s in r.scope_metrics for m in s.metrics)
        for request in receiver.requests
    ]
    assert len(sizes) > 3
    assert max(sizes) < MOST_POINTS + 50


LIES: dict[str, tuple[Answer, str]] = {
    "refuses": (answering(401), "HTTP 401"),
    "sends elsewhere": (answering(302, Location="http://127.0.0.1:1/login"), "HTTP 302"),
    "does not know the path": (answering(404), "HTTP 404"),
    "took a part": (rejecting(12), "12 data points were rejected"),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_was_not_taken_is_said(own: CollectorRegistry, lie: str) -> None:
    answer, words = LIES[lie]
    with receiving(answer) as receiver, pusher(receiver, own) as (each, _):
        with pytest.raises(PushFailed, match=words):
            each.push(until=FAR)
        assert len(receiver.requests) == 1, "no redirect is followed, and what is final is not tried again"


@pytest.mark.parametrize(
    "answer", [answering(body=b"\xff" * 64), answering(body=b"{}"), talking_for_ever], ids=["noise", "json", "endless"]
)
def test_an_answer_that_cannot_be_read_is_not_waited_for(own: CollectorRegistry, answer: Answer) -> None:
    with receiving(answer) as receiver, pusher(receiver, own) as (each, _):
        began = time.monotonic()
        each.push(until=FAR)
        assert time.monotonic() - began < 5


def test_a_receiver_that_hangs_is_given_up(own: CollectorRegistry) -> None:
    with receiving() as receiver, pusher(receiver, own, seconds=1) as (each, _):
        began = time.monotonic()
        with pytest.raises(PushFailed, match="timed out"):
            each.push(until=FAR)
        assert time.monotonic() - began < 5


def test_a_receiver_that_is_slower_than_the_interval_gets_no_more(own: CollectorRegistry) -> None:
    many = [sample(f"chat-{number}") for number in range(300)]
    with receiving(answering()) as receiver, pusher(receiver, own, snapshot(*many)) as (each, _):
        with pytest.raises(PushFailed, match="more than the 60 s"):
            each.push(until=0)
        assert len(receiver.requests) == 1


async def test_the_thread_pushes_again_and_again_and_ends(own: CollectorRegistry) -> None:
    troubles = Troubles(lambda _: None)
    with receiving(answering()) as receiver:
        options = OtlpOptions(endpoint=receiver.address, interval_seconds=0.05)
        async with pushing(options, "kvgate-webhook", own, troubles):
            await asyncio.to_thread(receiver.wait, 3)
        assert not [thread for thread in threading.enumerate() if thread.name == "otlp"]


async def test_a_process_stops_although_the_receiver_hangs_and_its_loop_never_waits(own: CollectorRegistry) -> None:
    with receiving() as receiver:
        options = OtlpOptions(endpoint=receiver.address, interval_seconds=60)
        async with pushing(options, "kvgate-webhook", own, Troubles(lambda _: None)):
            await asyncio.to_thread(receiver.wait)
            late = await longest_pause(0.2)
            began = time.monotonic()
        assert time.monotonic() - began < 4
        assert late < 0.15


async def longest_pause(seconds: float) -> float:
    """The longest time for which this loop did not turn."""
    end, last, longest = time.monotonic() + seconds, time.monotonic(), 0.0
    while last < end:
        await asyncio.sleep(0.005)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    return longest


async def test_an_outage_is_counted_at_each_push_and_logged_once(
    own: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    failures: Counter[str] = Counter()
    enough = threading.Event()

    def count(loop: str) -> None:
        failures[loop] += 1
        if failures[loop] == 3:
            enough.set()

    with receiving(answering(400)) as receiver:
        options = OtlpOptions(endpoint=receiver.address, interval_seconds=0.05)
        async with pushing(options, "kvgate-controller", own, Troubles(count)):
            assert await asyncio.to_thread(enough.wait, 20)
    ours = [record for record in caplog.records if "HTTP 400" in record.getMessage()]
    assert (len(ours), ours[0].levelname) == (1, "WARNING")
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


def test_counters_and_histograms_of_the_registry_have_no_kind_that_is_not_sent() -> None:
    assert {metric.kind for metric in METRICS} <= {MetricType.GAUGE, MetricType.COUNTER, MetricType.HISTOGRAM}
