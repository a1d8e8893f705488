"""What vLLM's releases report of their KV cache, and what is not to be believed."""

import pytest

from kvgate.sources.engine_metrics import NotAnEngine, UnreadableMetrics, read_engine
from kvgate.vllm.metric_names import EngineReading

INFO = "vllm:cache_config_info"
USAGE = 'vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.25'


def info(name: str = INFO, **labels: str) -> str:
    """Of a Llama with 4096 blocks of 128 tokens, vLLM 0.32; a label set to an empty text is left out."""
    known = {
        "engine": "0",
        "num_gpu_blocks": "4096",
        "block_size": "128",
        "kv_cache_size_tokens": "524288",
        "cache_dtype": "auto",
    }
    told = ",".join(f'{key}="{value}"' for key, value in (known | labels).items() if value)
    return f"{name}{{{told}}} 1.0"


def read(*lines: str) -> EngineReading:
    return read_engine("".join(f"{line}\n" for line in lines).encode())


def test_the_capacity_stands_in_labels_and_the_usage_is_a_share() -> None:
    found = read("# TYPE vllm:cache_config_info gauge", info(), USAGE, 'vllm:num_requests_running{engine="0"} 3.0')
    assert found == EngineReading(num_gpu_blocks=4096, block_size=128, kv_cache_size_tokens=524288)
    assert found.usage_ratio == 0.25


@pytest.mark.parametrize(
    ("lines", "tokens", "usage"),
    [
        ([info(engine="", kv_cache_size_tokens=""), "vllm:gpu_cache_usage_perc 0.5"], None, 0.5),  # 0.6.6
        ([info(kv_cache_size_tokens="")], None, None),  # up to 0.22, before the first request
        ([info(kv_cache_size_tokens="None"), USAGE], None, 0.25),
        ([info("vllm_cache_config_info"), USAGE.replace(":", "_"), "# EOF"], 524288, 0.25),  # OpenMetrics
        ([info(), "vllm:gpu_cache_usage_perc 0.5", "vllm:kv_cache_usage_perc 0.5"], 524288, 0.5),  # 0.9 to 0.11
    ],
)
def test_every_release_is_read(lines: list[str], tokens: int | None, usage: float | None) -> None:
    found = read(*lines)
    assert (found.num_gpu_blocks, found.block_size) == (4096, 128)
    assert (found.kv_cache_size_tokens, found.usage_ratio) == (tokens, usage)


def test_of_two_engines_the_smaller_cache_and_the_larger_usage_count_and_blocks_are_not_their_sum() -> None:
    found = read(
        info(num_gpu_blocks="8190", kv_cache_size_tokens="524288"),
        info(num_gpu_blocks="8190", kv_cache_size_tokens="524032", engine="1"),
        USAGE,
        USAGE.replace('engine="0"', 'engine="1"').replace("0.25", "0.75"),
    )
    assert (found.num_gpu_blocks, found.kv_cache_size_tokens, found.usage_ratio) == (4095, 524032, 0.75)


@pytest.mark.parametrize(
    ("labels", "is_given"),
    [
        ({}, False),
        ({"kv_cache_memory_bytes": "None", "num_gpu_blocks_override": "None"}, False),
        ({"kv_cache_memory_bytes": "58168442880", "num_gpu_blocks_override": "None"}, True),
        ({"num_gpu_blocks_override": "512"}, True),
    ],
)
def test_a_size_that_was_given_is_told_from_one_that_was_measured(labels: dict[str, str], *, is_given: bool) -> None:
    assert read(info(**labels)).is_size_given is is_given


def test_two_readings_of_the_same_cache_are_equal_whatever_its_usage() -> None:
    assert read(info(), USAGE) == read(info(), USAGE.replace("0.25", "0.75"))


@pytest.mark.parametrize(
    "program", ["", "sglang:num_running_reqs 3\n", '# HELP go_info a\ngo_info{v="1"} 1\n', "<html>"]
)
def test_another_programs_metrics_are_named(program: str) -> None:
    with pytest.raises(NotAnEngine, match="no metrics of vLLM; the first one is"):
        read(program)


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (["vllm:num_requests_running 1"], "no vllm:cache_config_info among them"),
        ([info(num_gpu_blocks="")], "no label num_gpu_blocks; the first ones are block_size, cache_dtype, engine"),
        ([info(block_size="")], "no label block_size"),
        ([info(num_gpu_blocks="None")], "num_gpu_blocks is 'None' and not a number above 0"),
        ([info(num_gpu_blocks="0")], "num_gpu_blocks is '0'"),
        ([info(kv_cache_size_tokens="0")], "kv_cache_size_tokens is '0'"),
        ([info(kv_cache_size_tokens="-5")], "kv_cache_size_tokens is '-5'"),
        ([info(kv_cache_size_tokens="1e6")], "kv_cache_size_tokens is '1e6'"),
        ([info(kv_cache_size_tokens="9" * 100)], "kv_cache_size_tokens is '9{60}' and"),
        ([info(block_size="١٢٨")], "block_size is '١٢٨'"),
        ([info(num_gpu_blocks="1"), info(num_gpu_blocks="1", engine="1")], "fewer blocks than engines"),
        ([info(), "vllm:kv_cache_usage_perc NaN"], "kv_cache_usage_perc is not between 0 and 1"),
        ([info(), "vllm:kv_cache_usage_perc 97"], "kv_cache_usage_perc is not between 0 and 1"),
        ([info(), "vllm:kv_cache_usage_perc -0.1"], "kv_cache_usage_perc is not between"),
        ([info(), "vllm:kv_cache_usage_perc full"], "kv_cache_usage_perc has the value 'full'"),
        (['vllm:cache_config_info{engine="0'], "cache_config_info cannot be parsed"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_is_named(lines: list[str], complaint: str) -> None:
    with pytest.raises(UnreadableMetrics, match=complaint):
        read(*lines)


def test_bytes_that_are_no_text_are_named() -> None:
    with pytest.raises(UnreadableMetrics, match="vllm:cache_config_info is not UTF-8"):
        read_engine(b'vllm:cache_config_info{engine="\xff"} 1\n')


@pytest.mark.parametrize("line", [info(), info(padding="x" * 70_000), USAGE], ids=["capacity", "one line", "usage"])
def test_a_metric_that_is_repeated_without_end_is_neither_parsed_nor_remembered(line: str) -> None:
    with pytest.raises(UnreadableMetrics, match="takes more than 64 KiB"):
        read(info(), *[line] * 2000)


def test_a_usage_that_changes_is_one_trouble_in_one_wording() -> None:
    def told(usage: float) -> str:
        with pytest.raises(UnreadableMetrics) as caught:
            read(info(), f"vllm:kv_cache_usage_perc {usage}")
        return str(caught.value)

    assert told(1.25) == told(1.5)
