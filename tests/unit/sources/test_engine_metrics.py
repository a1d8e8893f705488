"""What vLLM's releases report of their KV cache, and what is not to be believed."""

import contextlib
import random
import time

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from kvgate.sources.engine_metrics import CutMetrics, NotAnEngine, UnknownNames, UnreadableMetrics, read_engine
from kvgate.vllm.metric_names import ENGINE_METRICS, NEEDED, EngineReading
from support.tables import table

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


@pytest.mark.parametrize(
    ("label", "share"),
    [("0.92", 0.92), ("1.0", 1.0), ("", None), ("None", None), ("nan", None), ("-0.5", None), ("9e9", None)],
)
def test_the_share_of_the_gpu_is_as_the_engine_runs(label: str, share: float | None) -> None:
    assert read(info(gpu_memory_utilization=label)).gpu_memory_utilization == share


def test_two_readings_of_the_same_cache_are_equal_whatever_its_usage() -> None:
    assert read(info(), USAGE) == read(info(), USAGE.replace("0.25", "0.75"))


@pytest.mark.parametrize(
    "program", ["", "sglang:num_running_reqs 3\n", '# HELP go_info a\ngo_info{v="1"} 1\n', "<html>"]
)
def test_another_programs_metrics_are_named(program: str) -> None:
    with pytest.raises(NotAnEngine, match="no metrics of vLLM; the first one is"):
        read(program)


@table(
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


def typed(*left_out: str) -> list[str]:
    """The TYPE lines of an engine, without those of some quantities, and one of a name that no release has."""
    names = [(metric.names[0].name, metric.kind) for metric in ENGINE_METRICS if metric.key not in left_out]
    return [f"# TYPE {name} {kind}" for name, kind in (*names, ("vllm:latent_cache_share", "gauge"))]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(['{"vllm:cache_config_info",' + info()[len(INFO) + 1 :]], id="name in quotes, as Prometheus 3 writes it"),
        pytest.param([info().replace('engine="0"', '"engine"="0"')], id="label in quotes"),
        pytest.param([info(**{"model.name": "x"}).replace("model.name", '"model.name"')], id="label that must be in quotes"),
        pytest.param([info() + " 1700000000000"], id="timestamp"),
        pytest.param([info() + " 99999999999999999999"], id="timestamp in the far future"),
        pytest.param([info() + ' 17.5 # {trace_id="a"} 1 17.5'], id="exemplar"),
        pytest.param([info().replace(",", " , ").replace("{", "{ ").replace("}", " , }")], id="blanks and a last comma"),
        pytest.param([info(note=r'a \"b\\ } c\n')], id="escapes"),
        pytest.param([info() + "\r"], id="lines as Windows ends them"),
        pytest.param([info(), info()], id="the same series twice"),
        pytest.param(["vllm:cache_config_information 1", info()], id="a longer name"),
    ],
)  # fmt: skip
def test_every_way_to_write_a_series_is_read(lines: list[str]) -> None:
    found = read(*lines, USAGE)
    assert (found, found.usage_ratio) == (
        EngineReading(num_gpu_blocks=4096, block_size=128, kv_cache_size_tokens=524288),
        0.25,
    )


@table(
    ("lines", "complaint"),
    [
        ([info(), info(num_gpu_blocks="8192")], "cache_config_info of engine '0' is there twice, with different values"),
        ([info(), USAGE, USAGE.replace("0.25", "0.5")], "kv_cache_usage_perc of engine '0' is there twice"),
        ([info(engine="x" * 500), info(engine="x" * 500, block_size="64")], "of engine 'x{60}' is there twice"),
        ([info(num_gpu_blocks="999999999999")], "999,999,999,999 blocks of 128 tokens, which no memory holds"),
        ([info(), USAGE.replace('engine="0"', 'engine="7"')], "the usage of engine '7' and not its capacity"),
        ([info(), "vllm:kv_cache_usage_perc +Inf"], "is not between 0 and 1"),
        ([info(), "vllm:kv_cache_usage_perc"], "ends|cannot be parsed|has the value"),
        ([info(), "vllm:kv_cache_usage_perc 1 2 3"], "cannot be parsed"),
        ([info().replace('"4096"', '"4096')], "cannot be parsed|labels that cannot be parsed"),
        ([info().replace('block_size="128"', 'engine="1"')], "has labels that cannot be parsed"),
        ([info().replace("block_size=", "block size=")], "has labels that cannot be parsed"),
        ([info(), *["vllm:kv_cache_usage_percentage 1"] * 5000], "has more than 4096 lines that begin with"),
    ],
)  # fmt: skip
def test_a_series_that_says_two_things_or_nothing_is_not_guessed(lines: list[str], complaint: str) -> None:
    if lines[-1] == "vllm:kv_cache_usage_perc":  # a name alone is no series: nothing is reported
        assert read(*lines).usage_ratio is None
        return
    with pytest.raises(UnreadableMetrics, match=complaint):
        read(*lines)


def test_known_names_without_the_capacity_are_no_unknown_release() -> None:
    with pytest.raises(UnreadableMetrics, match=r"among them$") as caught:
        read('vllm:num_requests_running{a="b"} 1', 'vllm:time_to_first_token_seconds_bucket{le="1"} 1')
    assert type(caught.value) is UnreadableMetrics


def test_usages_of_two_models_are_two_series() -> None:
    assert read(info(), USAGE, USAGE.replace('"a"', '"b"').replace("0.25", "0.5")).usage_ratio == 0.5


@pytest.mark.parametrize("length", [7, 40, 100, len(info()) - 1, len(info()), len(info()) + 30])
def test_an_answer_that_is_cut_anywhere_gives_no_wrong_figure(length: int) -> None:
    whole = f"{info()}\n{USAGE}\n".encode()
    with pytest.raises((CutMetrics, NotAnEngine)):
        read_engine(whole[:length])


def test_an_answer_that_is_cut_between_two_engines_does_not_double_the_capacity() -> None:
    usages = [USAGE, USAGE.replace('engine="0"', 'engine="1"')]
    engines = [info(num_gpu_blocks="8192"), info(num_gpu_blocks="8192", engine="1")]
    assert read(*usages, *engines).num_gpu_blocks == 4096
    with pytest.raises(CutMetrics, match="the usage of engine '1' and not its capacity"):
        read(*usages, engines[0])


def test_open_metrics_without_its_end_are_cut() -> None:
    whole = f"{info()}\n{USAGE}\n# EOF\n".encode()
    assert read_engine(whole, is_open_metrics=True).usage_ratio == 0.25
    with pytest.raises(CutMetrics, match="without # EOF"):
        read_engine(whole.removesuffix(b"# EOF\n"), is_open_metrics=True)


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (["vllm:zeta 1", "vllm:alpha 1", 'vllm:beta{a="b"} 1', "vllm:gamma 1"], "kvgate does not know vllm:alpha, vllm:beta, vllm:gamma$"),
        (['{"vllm:alpha",a="b"} 1'], "kvgate does not know vllm:alpha$"),
        (["vllm_alpha 1"], "kvgate does not know vllm:alpha$"),
        (["vllm:" + "x" * 500 + " 1"], "kvgate does not know vllm:x{60}$"),
        ([info().replace("num_gpu_blocks", "blocks_of_gpu")], "no label num_gpu_blocks; the first ones are block_size, blocks_of_gpu"),
        ([info(num_gpu_blocks="", **{"x" * 500: "y"})], "the first ones are block_size, cache_dtype, engine$"),
    ],
)  # fmt: skip
def test_names_that_nobody_knows_are_told_and_not_guessed(lines: list[str], complaint: str) -> None:
    with pytest.raises(UnknownNames, match=complaint):
        read(*lines)


@pytest.mark.parametrize("key", [metric.key for metric in NEEDED])
def test_a_quantity_under_a_name_that_nobody_knows_is_missing(key: str) -> None:
    assert read(info(), *typed(key)).missing == (key,)


def test_before_its_first_request_a_release_misses_nothing() -> None:
    assert read(info(), USAGE, *typed()).missing == ()
    assert read(info(), "# TYPE vllm:cache_config_info gauge").missing == (), "no unknown name is there"


HOSTILE = {
    "labels": ",".join(f'a{index}=""' for index in range(6000)),
    "escapes": 'a="' + "\\\\" * 30_000 + '"',
    "open escape": 'a="\\' + "\\" * 60_000,
    "commas": "," * 60_000,
    "braces": "{" * 60_000,
    "quotes": '"' * 60_000,
    "blanks": " " * 60_000,
}


@pytest.mark.parametrize("labels", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_line_is_left_in_time(labels: str) -> None:
    """A pattern that goes back and forth would take minutes."""
    started = time.process_time()
    with contextlib.suppress(UnreadableMetrics):
        read(info(), f"vllm:kv_cache_usage_perc{{{labels}}} 0.5", f"vllm:kv_cache_usage_perc 1{labels} x y")
    assert time.process_time() - started < 1


def test_the_parser_reads_what_prometheus_client_writes() -> None:
    """A label may hold anything: quotes, braces, line ends, other alphabets."""
    chance = random.Random(7)
    for _ in range(300):
        registry = CollectorRegistry()
        text = "".join(chance.choice('ab"\\{}=,# \n\té日') for _ in range(chance.randrange(30)))
        gauge = Gauge("vllm:cache_config_info", "", ["a", "block_size", "num_gpu_blocks", "z"], registry=registry)
        gauge.labels(text, "16", "4096", text[::-1]).set(1)
        found = read_engine(generate_latest(registry))
        assert (found.num_gpu_blocks, found.block_size) == (4096, 16), text
