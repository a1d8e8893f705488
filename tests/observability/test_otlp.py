"""Pushed to a real Prometheus 3, every series has the name, the labels and the value of a scrape."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

pytest.importorskip("opentelemetry.sdk", reason="the extra `otlp` is not installed")

from controlplane.prometheus import Prometheus, serving
from fleet.monitored import judged_samples
from kvgate.metrics import registry
from kvgate.metrics.exporter import DeploymentSnapshot, counter, gauge, histogram, metrics_answer, new_registry
from kvgate.metrics.otlp import Pusher
from kvgate.metrics.registry import PER_PROCESS, MetricType
from kvgate.runtime.background import Troubles
from kvgate.runtime.service import OtlpOptions
from support.prometheus import require_prometheus

LABELS_OF_THE_PUSH = {"__name__", "job", "instance"}
CHANGES = ("process_", "python_")
"""Beginnings of names whose values are new at each look."""

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def prometheus(pytestconfig: pytest.Config) -> Iterator[Prometheus]:
    with serving(require_prometheus(pytestconfig, "3"), "{}", flags=["--web.enable-otlp-receiver"]) as server:
        yield server


def normal(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Bounds of buckets are numbers: 5.0 is the same as 5."""
    return tuple(
        sorted((k, str(float(v)) if k == "le" else v) for k, v in labels.items() if k not in LABELS_OF_THE_PUSH)
    )


def scraped(text: str) -> Series:
    return {
        (line.name, normal(line.labels)): line.value
        for family in text_string_to_metric_families(text)
        for line in family.samples
    }


def stored(prometheus: Prometheus) -> Series:
    samples = prometheus.query('{__name__!~"target_info|otel_scope_info", job="kvgate-controller"}')
    return {(sample.labels["__name__"], normal(sample.labels)): sample.value for sample in samples}


def test_a_push_brings_what_a_scrape_brings(prometheus: Prometheus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(Path(prometheus.program.folder) / "ca.crt"))
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # requests takes these before what OpenTelemetry gives it
        monkeypatch.delenv(variable, raising=False)
    own, deployments = new_registry(), DeploymentSnapshot()
    deployments.publish({(each.namespace, each.name): each for each in judged_samples()})
    makers = {MetricType.COUNTER: counter, MetricType.GAUGE: gauge, MetricType.HISTOGRAM: histogram}
    for metric in (each for each in PER_PROCESS if each not in (registry.BUILD_INFO, registry.CATALOGUE_ENTRIES)):
        child = makers[metric.kind](metric, own)
        child = child.labels(*metric.labels) if metric.labels else child
        (child.observe if metric.kind == MetricType.HISTOGRAM else child.inc)(0.125)
    options = OtlpOptions(endpoint=f"{prometheus.url}/api/v1/otlp", interval_seconds=60)
    pusher = Pusher(options, "kvgate-controller", own, Troubles(lambda _: None), deployments)
    pusher.push(until=1e12)
    pusher.stop()
    expected = scraped(metrics_answer("", own, deployments)[0].decode())
    found = stored(prometheus)
    assert len(expected) > 200
    assert found.keys() == expected.keys()
    steady = {key: value for key, value in expected.items() if not key[0].startswith(CHANGES)}
    assert {key: found[key] for key in steady} == pytest.approx(steady)
