"""The words that PromQL is put together from."""

from kvgate.metrics import registry
from kvgate.vllm import metric_names
from mixin.queries import aggregate, any_name, equals, owned, quantile, select


def test_a_metric_of_an_inferencedeployment_is_one_series_for_each() -> None:
    assert owned(registry.KV_CACHE_HEADROOM_RATIO, equals("bound", "low")) == (
        'max by (cluster, namespace, inferencedeployment) (kvgate_kv_cache_headroom_ratio{bound="low"})'
    )


def test_every_name_that_vllm_gave_a_metric_is_asked_for_the_newest_first() -> None:
    assert any_name(metric_names.KV_CACHE_USAGE, lambda name: select(name, equals("pod", "a"))) == (
        'vllm:kv_cache_usage_perc{pod="a"} or vllm:gpu_cache_usage_perc{pod="a"}'
    )


def test_without_labels_an_aggregation_is_one_series() -> None:
    assert aggregate("sum", (), "x") == "sum(x)"


def test_a_quantile_keeps_the_bucket_bounds() -> None:
    assert quantile(0.99, ("pod",), "rate(x_bucket[1m])") == (
        "histogram_quantile(0.99, sum by (pod, le) (rate(x_bucket[1m])))"
    )
