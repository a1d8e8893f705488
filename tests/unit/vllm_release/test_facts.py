"""What a release has beside its options, and what stops the reading where it is not where it used to be."""

import pytest

from support.vllm_source import new_source
from vllm_release.facts import BatchTier, read_release
from vllm_release.source import NotRead


def test_a_release_is_read() -> None:
    facts = read_release(new_source())
    assert facts.version == "0.34.0"
    assert facts.parsers == {"--reasoning-parser": {"deep"}, "--tool-call-parser": {"hermes", "xml"}}
    assert facts.model_classes == {"AForCausalLM", "BModel", "C"}
    assert facts.kv_cache_dtypes == ("auto", "fp8", "tiny_2bit")


def test_metrics_are_named_as_they_are_scraped() -> None:
    assert read_release(new_source()).metrics == {
        "cache_info": "gauge",
        "failed_total": "counter",
        "load_size": "histogram",
        "loaded_bytes_total": "counter",
        "preempted_total": "counter",
        "read_total": "counter",
        "running": "gauge",
        "skipped_total": "counter",
        "wait_seconds": "histogram",
    }


def test_batch_limits_are_those_of_the_server_by_memory_and_device() -> None:
    assert read_release(new_source()).batch_tiers == (
        BatchTier(160, 4096, 64),
        BatchTier(70, 2048, 32, ("a100", "gb10")),
        BatchTier(0, 1024, 16),
    )


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"registry": ("_VLLM_MODELS", "_MODELS")}, "no dictionary _VLLM_MODELS"),
        ({"config/cache": ("CacheDType =", "CacheFormat =")}, "no literal CacheDType"),
        ({"arg_utils": ('and "a100" not in device_name', "and is_slow()")}, r"batch limits depend on is_slow\(\)"),
        ({"arg_utils": ("get_batch_defaults", "batch_defaults")}, "sets no batch limits by memory"),
        (
            {"arg_utils": ("Usage.OPENAI_API_SERVER", "Usage.SERVER")},
            "batch limits of OPENAI_API_SERVER are no numbers",
        ),
    ],
)
def test_what_is_elsewhere_is_reported_and_not_guessed(changed: dict[str, tuple[str, str]], reason: str) -> None:
    with pytest.raises(NotRead, match=reason):
        read_release(new_source(**changed))


def test_a_file_that_is_gone_is_named() -> None:
    source = new_source()
    del source.files["vllm/reasoning/__init__.py"]  # type: ignore[attr-defined]
    with pytest.raises(NotRead, match=r"vLLM 0\.34\.0 has no vllm/reasoning/__init__\.py"):
        read_release(source)
