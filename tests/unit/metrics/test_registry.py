"""The metrics as data: names that Prometheus takes, units that agree with them, nothing forgotten."""

import re

from kvgate.metrics.registry import METRICS, OWNER_LABELS, PER_DEPLOYMENT, PER_PROCESS, Metric, MetricType
from support.tables import table


def test_every_name_stands_once() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))


@table("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_keeps_the_conventions(metric: Metric) -> None:
    assert re.fullmatch(r"kvgate_[a-z_]+[a-z]", metric.name), "no colons, no capitals"
    assert metric.help.endswith(".")
    assert "\n" not in metric.help
    assert metric.name.endswith(metric.unit)
    assert (metric.kind is MetricType.COUNTER) == metric.name.endswith("_total")
    assert (metric.kind is MetricType.HISTOGRAM) == bool(metric.buckets)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert not {"uid", "le"} & set(metric.labels)
    assert ("pod" in metric.labels) == metric.name.startswith("kvgate_pod_") == (metric.labels[2:3] == ("pod",)) or (
        metric in PER_PROCESS
    )


def test_the_metrics_of_a_deployment_name_their_owner_first() -> None:
    assert all(metric.labels[:2] == OWNER_LABELS for metric in PER_DEPLOYMENT)
    assert not any(metric.labels[:2] == OWNER_LABELS for metric in METRICS if metric not in PER_DEPLOYMENT)
